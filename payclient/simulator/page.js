"use strict";
// Text is only ever set as text: what merchants send is never read as HTML.

const KEPT = 200;
const SHOPS = [["Café Central", 1150], ["Librería Sur", 2490], ["Taxi 42", 375], ["Farmacia Norte", 1899]];
const HOW = { paid: "good", declined: "bad" };

let lastEntry = 0;
let cards = new Map();
const shown = {};

const $ = (id) => document.getElementById(id);
const find = (element, selector) => element.querySelector(selector);

function make(tag, className, ...content) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...content);
  return element;
}

/** Show items as rows, and leave the rows alone while they are the same: somebody may be pressing one. */
function list(id, items, row) {
  const text = JSON.stringify(items);
  if (shown[id] !== text) $(id).replaceChildren(...items.map(row));
  shown[id] = text;
}

function button(text, className, onClick) {
  const element = make("button", className, text);
  element.addEventListener("click", onClick);
  return element;
}

/** Call an operation of the control API, whose names and arguments are those of Python. */
async function call(operation, args = {}) {
  const response = await fetch(`/_simulator/${operation}`, {
    method: "POST",
    cache: "no-store",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(args),
  });
  if (response.status >= 500) throw new Error(String(response.status));
  return response.json();
}

const money = (of) => `${of.currency} ${(of.amount / 100).toFixed(2)}`;

function minutes(seconds) {
  const whole = Math.ceil(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

function timeOf(seconds, more) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false, ...more };
  return new Date(seconds * 1000).toLocaleTimeString([], options);
}

function markOf(one) {
  const word = one.reversal ? "given back" : one.how || "expired";
  return make("span", `mark ${HOW[word] || "flat"}`, word);
}

// --- The phone

function pushCard(sale) {
  const answer = async (operation, args) => {
    const buttons = card.querySelectorAll("button");
    for (const one of buttons) one.disabled = true;
    await call(operation, { sale: sale.transaction_id, ...args }).catch(() => buttons.forEach((one) => (one.disabled = false)));
    await refresh();
  };
  const card = make(
    "article",
    "push",
    make("div", "from", make("span", "", "Payment request"), make("span", "", `to ${sale.customer}`)),
    make("p", "store", sale.store_id || "Merchant"),
    make("p", "amount", money(sale)),
    make("div", "left", make("span", "", sale.client_transaction_id), make("span", "clock")),
    make(
      "div",
      "buttons",
      button("Reject", "", () => answer("reject", { reason: $("reason").value || null })),
      button("Approve", "primary", () => answer("approve")),
    ),
  );
  return card;
}

function showPushes(state) {
  const now = performance.now();
  const seen = new Map();
  for (const sale of state.pending) {
    const card = cards.get(sale.transaction_id)?.card || pushCard(sale);
    seen.set(sale.transaction_id, { card, endsAt: now + (sale.expires_at - state.time) * 1000 });
  }
  for (const [id, { card }] of cards) if (!seen.has(id)) card.remove();
  let before = $("pushes").firstElementChild;
  for (const { card } of seen.values()) {
    if (card === before) before = card.nextElementSibling;
    else $("pushes").insertBefore(card, before);
  }
  cards = seen;
  const more = state.counts.pending - seen.size;
  $("more").textContent = more > 0 ? `and ${more} more` : "";
  $("no-pushes").hidden = seen.size > 0;
  $("sample-sale").className = seen.size > 0 ? "" : "primary";
}

function tick() {
  const now = performance.now();
  for (const { card, endsAt } of cards.values()) {
    find(card, ".clock").textContent = minutes(Math.max(0, endsAt - now) / 1000);
  }
}

// --- Beside it

function formRow(form) {
  const links = Object.entries(form.links).map(([method, address]) => {
    const link = make("a", "", method === "wallet" ? "Open in the app" : "Open by card");
    Object.assign(link, { href: address, target: "_blank", rel: "noopener" });
    return link;
  });
  const what = make("div", "what", `${form.store_id || "Merchant"} · ${money(form)} `, make("span", "", form.client_transaction_id));
  return make("li", "", what, make("div", "links", ...(links.length ? links : [markOf(form)])));
}

function logRow(entry) {
  const ids = [entry.client_transaction_id, entry.transaction_id].filter((one) => one !== null);
  const end = make("div", "end");
  if (entry.fault) end.append(make("span", "tag fault", entry.fault));
  if (entry.status) end.append(make("span", `tag ${entry.status < 400 ? "good" : "bad"}`, entry.status));
  else if (entry.kind === "request") end.append(make("span", "tag bad", "no answer"));
  return make(
    "li",
    "",
    make("time", "", timeOf(entry.at, { second: "2-digit" })),
    make("span", "kind", entry.kind),
    make("div", "text", `${entry.text} `, make("span", "", ids.join(" · "))),
    end,
  );
}

async function refresh() {
  const state = await call("overview");
  $("time").textContent = timeOf(state.time);
  showPushes(state);
  $("no-forms").hidden = state.forms.length > 0;
  list("forms", state.forms, formRow);
  tick();
  return state;
}

async function watch() {
  for (;;) {
    try {
      const state = await refresh();
      if (state.log < lastEntry) {
        lastEntry = 0; // another simulator at the same address
        $("log").replaceChildren();
      }
      $("offline").hidden = true;
      for (const entry of await call("read_log", { after: lastEntry })) {
        $("log").prepend(logRow(entry));
        lastEntry = entry.number;
      }
      while ($("log").children.length > KEPT) $("log").lastElementChild.remove();
      $("no-log").hidden = lastEntry > 0;
    } catch {
      $("offline").hidden = false;
    }
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

// --- What is done here

function sample(more) {
  const number = Date.now() % 1e7;
  const [storeId, amount] = SHOPS[number % SHOPS.length];
  return { clientTransactionId: `sample-${number}`, storeId, amount, amountWithoutTax: amount, currency: "USD", ...more(number) };
}

const sampleSale = (number) => ({ phoneNumber: `09${String(number).padStart(8, "0")}`, countryCode: "593" });
const sampleForm = () => ({ responseUrl: `${location.origin}/`, cancellationUrl: `${location.origin}/` });

async function fill() {
  $("reason").append(...Object.entries(await call("reasons")).map(([name, says]) => new Option(says, name)));
}

const act = (id, action) => $(id).addEventListener("click", () => action().then(refresh));
act("sample-sale", () => call("create_sale", { body: sample(sampleSale) }));
act("sample-form", () => call("create_form", { body: sample(sampleForm) }));
$("address").textContent = `${location.origin}/api/Sale`;
setInterval(tick, 250);
fill().catch(() => {});
watch();
