// Searches for edbatch.batch where somebody types eb.batch, as code does.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const search = Search.performSearch;
  Search.performSearch = (query) => search(query.replace(/\beb\./g, "edbatch."));
});
