"""Parsed sentences as the text of a CoNLL-U file."""


def conllu(sentences):
    """Writes sentences of words ``form/tag/head/relation``; the tag may be missing."""
    return "\n\n".join(map(_block, sentences)) + "\n"


def _block(sentence):
    lines = []
    for k, word in enumerate(sentence.split(), start=1):
        form, *tag, head, relation = word.split("/")
        fields = (k, form, "_", tag[0] if tag else "_", "_", "_", head, relation)
        lines.append("\t".join(map(str, (*fields, "_", "_"))))
    return "\n".join(lines)
