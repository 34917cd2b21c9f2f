"use strict";
// Text is only ever set as text: what merchants send is never read as HTML.

const KEPT = 200;
const KINDS = { request: "request", customer: "customer", notification: "notification", page: "form", service: "simulator" };
const HOW = {
  approved: ["Approved", "good"],
  rejected: ["Rejected", "bad"],
  expired: ["Expired", "flat"],
  cancelled: ["Withdrawn", "flat"],
};
const COUNTS = [
  ["created", "sales"],
  ["approved", "approved"],
  ["rejected", "rejected"],
  ["expired", "expired"],
  ["refused", "refused"],
  ["forms_paid", "forms paid"],
  ["notifications_sent", "notified"],
];

let last = 0;
let pushes = new Map();
let serviceTime = 0;
let readAt = 0;

const $ = (id) => document.getElementById(id);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

async function ask(method, path, body) {
  const options = { method, cache: "no-store" };
  if (method === "POST") {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body || {});
  }
  const response = await fetch(`/_simulator/${path}`, options);
  if (response.status >= 500) throw new Error(String(response.status));
  return response.json();
}

function money(of) {
  const cents = String(of.amount % 100).padStart(2, "0");
  return `${of.currency} ${Math.floor(of.amount / 100)}.${cents}`;
}

function minutes(seconds) {
  const whole = Math.ceil(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

function timeOf(seconds, withSeconds) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (withSeconds) options.second = "2-digit";
  return new Date(seconds * 1000).toLocaleTimeString([], options);
}

// --- The phone

function pushCard(push) {
  const card = make("article", "push");
  card.dataset.id = push.transaction_id;
  const from = make("div", "from");
  from.append(make("span", "", "Payment request"), make("span", "", `to ${push.customer}`));
  const left = make("div", "left");
  left.append(make("span", "", push.client_transaction_id), make("span", "clock"));
  const track = make("div", "track");
  track.append(make("div"));
  const buttons = make("div", "buttons");
  for (const [verb, text, className] of [
    ["reject", "Reject", ""],
    ["approve", "Approve", "primary"],
    ["ignore", "Do not answer", "ignore"],
  ]) {
    const button = make("button", className, text);
    button.addEventListener("click", () => answer(card, push.transaction_id, verb));
    buttons.append(button);
  }
  card.append(from, make("p", "store", push.store || "Merchant"), make("p", "amount", money(push)), left, track, buttons);
  return card;
}

async function answer(card, id, verb) {
  for (const button of card.querySelectorAll("button")) button.disabled = true;
  try {
    await ask("POST", `sales/${id}/${verb}`);
  } catch {
    for (const button of card.querySelectorAll("button")) button.disabled = false;
  }
  await refresh();
}

function showPushes(state) {
  const now = performance.now();
  const seen = new Map();
  for (const push of state.pushes) {
    const known = pushes.get(push.transaction_id);
    const card = known ? known.card : pushCard(push);
    const ignore = card.querySelector(".ignore");
    if (push.ignored) {
      ignore.textContent = "Left unanswered";
      ignore.disabled = true;
    }
    seen.set(push.transaction_id, { card, endsAt: now + push.expires_in * 1000, window: state.sale_window * 1000 });
  }
  for (const [id, known] of pushes) if (!seen.has(id)) known.card.remove();
  let before = $("pushes").firstElementChild;
  for (const { card } of seen.values()) {
    if (card === before) before = card.nextElementSibling;
    else $("pushes").insertBefore(card, before);
  }
  pushes = seen;
  $("more").hidden = state.more_pushes === 0;
  $("more").textContent = `and ${state.more_pushes} more`;
  $("quiet").firstElementChild.hidden = seen.size > 0;
  $("quiet").classList.toggle("empty", seen.size === 0 && state.decided.length === 0);
  $("sample-sale").className = seen.size > 0 ? "" : "primary";
  tick();
}

function tick() {
  const now = performance.now();
  for (const { card, endsAt, window } of pushes.values()) {
    const left = Math.max(0, endsAt - now);
    card.querySelector(".clock").textContent = minutes(left / 1000);
    card.querySelector(".track div").style.width = `${(100 * left) / window}%`;
    card.classList.toggle("soon", left < window / 5);
  }
  if (serviceTime) $("time").textContent = timeOf(serviceTime + (now - readAt) / 1000);
}

function showDecided(decided) {
  $("earlier").hidden = decided.length === 0;
  $("decided").replaceChildren(
    ...decided.map((sale) => {
      const [text, className] = HOW[sale.how] || [sale.how, "flat"];
      const row = make("li");
      row.append(
        make("span", "", sale.store || "Merchant"),
        make("span", "money", money(sale)),
        make("span", "id", sale.client_transaction_id),
        make("span", `mark ${className}`, text),
      );
      return row;
    }),
  );
}

// --- Beside it

function showForms(forms) {
  $("no-forms").hidden = forms.length > 0;
  $("forms").replaceChildren(
    ...forms.map((form) => {
      const row = make("li");
      const what = make("div", "what", `${form.store} · ${money(form)} `);
      what.append(make("span", "", form.client_transaction_id));
      const links = make("div", "links");
      for (const [method, text] of [["wallet", "Open in the app"], ["card", "Open by card"]]) {
        if (!form.links[method]) continue;
        const link = make("a", "", text);
        link.href = form.links[method];
        link.target = "_blank";
        link.rel = "noopener";
        links.append(link);
      }
      if (!links.children.length) {
        const good = form.how === "paid";
        links.append(make("span", `mark ${good ? "good" : "flat"}`, form.how || "expired"));
      }
      row.append(what, links);
      return row;
    }),
  );
}

function showCounts(state) {
  $("counts").replaceChildren(
    ...COUNTS.map(([name, text]) => {
      const one = make("div");
      one.append(make("dt", "", text), make("dd", "", state.counts[name]));
      return one;
    }),
  );
  const twice = Object.keys(state.duplicates);
  $("twice").hidden = twice.length === 0;
  $("twice").textContent = `Charged more than once: ${twice.join(", ")}`;
}

function logRow(entry) {
  const row = make("li");
  const at = make("time", "", timeOf(entry.at, true));
  const text = make("div", "text", `${entry.text} `);
  const ids = [entry.client_transaction_id, entry.transaction_id].filter((one) => one !== null);
  text.append(make("span", "", ids.join(" · ")));
  const end = make("div", "end");
  if (entry.fault) end.append(make("span", "tag fault", entry.fault));
  if (entry.status) end.append(make("span", `tag ${entry.status < 400 ? "good" : "bad"}`, entry.status));
  else if (entry.kind === "request") end.append(make("span", "tag bad", "no answer"));
  row.append(at, make("span", `kind ${entry.kind}`, KINDS[entry.kind]), text, end);
  return row;
}

function showLog(entries) {
  const list = $("log");
  for (const entry of entries.slice(-KEPT)) list.prepend(logRow(entry));
  while (list.children.length > KEPT) list.lastElementChild.remove();
  $("no-log").hidden = list.children.length > 0;
}

async function refresh() {
  const state = await ask("GET", "phone");
  serviceTime = state.time;
  readAt = performance.now();
  showPushes(state);
  showDecided(state.decided);
  showForms(state.forms);
  showCounts(state);
}

async function watch() {
  let waiting = 0; // the first look waits for nothing
  for (;;) {
    try {
      const news = await ask("GET", `log?after=${last}&wait=${waiting}`);
      waiting = 5;
      if (news.last < last) $("log").replaceChildren(); // another simulator at the same address
      if (news.last < last) last = 0;
      else {
        showLog(news.entries);
        last = news.last;
      }
      await refresh();
      $("offline").hidden = true;
    } catch {
      $("offline").hidden = false;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

async function fill() {
  const [scenarios, faults] = await Promise.all([ask("GET", "scenarios"), ask("GET", "faults")]);
  $("scenario").append(make("option", "", "as started"));
  $("scenario").firstElementChild.value = "";
  for (const [name, says] of Object.entries(scenarios)) {
    const option = make("option", "", name);
    option.value = name;
    option.dataset.says = says;
    $("scenario").append(option);
  }
  for (const [name, says] of Object.entries(faults.kinds)) {
    const option = make("option", "", name);
    option.value = name;
    option.dataset.says = says;
    $("fault").append(option);
  }
  say($("fault"));
  $("scenario").addEventListener("change", (event) => {
    say(event.target);
    if (event.target.value) ask("POST", "scenario", { name: event.target.value });
  });
  $("fault").addEventListener("change", (event) => say(event.target));
  $("arm").addEventListener("click", () => {
    say($("fault"));
    ask("POST", "faults", { kind: $("fault").value });
  });
}

function say(select) {
  $("says").textContent = select.selectedOptions[0].dataset.says || "";
}

$("pass").addEventListener("click", async () => {
  await ask("POST", "clock", { advance: 300 });
  await refresh();
});
$("sample-sale").addEventListener("click", () => ask("POST", "samples/sale").then(refresh));
$("sample-form").addEventListener("click", () => ask("POST", "samples/form").then(refresh));
$("address").textContent = `${location.origin}/api/Sale`;
setInterval(tick, 250);
fill().catch(() => {});
watch();
