// Asks the server every second what it did, and shows it. Nothing leaves the page.

import { Chart, shown } from "./chart.js";

const PERIOD_MS = 1000;
const TOTALS = {
  submitted: "accepted", answered: "answered", failed: "failed by their input",
  cancelled: "cancelled: the client hung up", expired: "too late for their deadline",
  refused: "refused: too many waited", malformed: "malformed, or not of the schema",
};
const find = (name) => document.getElementById(name);
const charts = [
  new Chart(find("throughput"), "Throughput, requests per second", [
    { key: "unanswered", label: "not answered", color: "red" },
    { key: "answered", label: "answered", color: "blue-2" },
  ]),
  new Chart(find("latency"), "Time to the answer, ms", [
    { key: "p50", label: "p50", color: "blue-1" },
    { key: "p95", label: "p95", color: "blue-2" },
    { key: "p99", label: "p99", color: "blue-3" },
  ]),
  new Chart(find("widths"), "Width, nodes per batch", [
    { key: "width", label: "mean", color: "aqua" },
  ]),
  new Chart(find("queue"), "Requests in the server", [
    { key: "in_flight", label: "in flight", color: "blue-2" },
    { key: "waiting", label: "waiting", color: "orange" },
  ]),
];
let seconds = [];

function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => a + b) / known.length : null;
}

function duration(total) {
  const days = Math.floor(total / 86400), hours = Math.floor(total / 3600) % 24;
  const minutes = Math.floor(total / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${Math.floor(total % 60)} s` : `${Math.floor(total)} s`;
}

function setPhase(phase) {
  find("phase").textContent = phase;
  find("phase").dataset.phase = phase;
}

function show(stats) {
  for (const each of stats.seconds)
    seconds.push({ ...each,
      unanswered: each.failed + each.cancelled + each.expired
        + each.refused + each.malformed });
  seconds = seconds.slice(-stats.kept_seconds);
  const latest = seconds.slice(-5);
  const now = seconds.length ? seconds[seconds.length - 1].time : stats.began;
  document.title = `${stats.model} – edbatch`;
  find("model").textContent = stats.model;
  setPhase(stats.phase);
  find("uptime").textContent = `up ${duration(Math.max(0, now - stats.began))}`;
  find("rate").textContent = shown(mean(latest.map((each) => each.answered)));
  find("width").textContent = shown(mean(latest.map((each) => each.width)));
  for (const name of ["p50", "p95", "p99"]) find(name).textContent = shown(stats.minute[name]);
  for (const name of ["in_flight", "waiting"]) find(name).textContent = shown(stats.now[name]);
  for (const chart of charts) chart.show(seconds, stats.kept_seconds);
  find("totals").replaceChildren(...Object.entries(TOTALS).map(([name, label]) => {
    const row = document.createElement("tr"), head = document.createElement("th");
    const cell = document.createElement("td");
    head.scope = "row";
    head.textContent = label;
    cell.textContent = stats.totals[name].toLocaleString("en");
    cell.dataset.name = name;
    row.append(head, cell);
    return row;
  }));
}

let began = null;

async function poll() {
  if (!document.hidden) {
    try {
      const since = seconds.length ? seconds[seconds.length - 1].time : 0;
      const answer = await fetch(`v1/stats?since=${since}`, { cache: "no-store" });
      const stats = await answer.json();
      if (began !== null && stats.began !== began) seconds = [];  // the server was restarted
      began = stats.began;
      show(stats);
    } catch {
      setPhase("no answer");
    }
  }
  setTimeout(poll, PERIOD_MS);
}

poll();
