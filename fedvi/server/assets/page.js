// Fetches the page regularly, and updates in place the parts that changed. Without this script the page
// reloads itself.
"use strict";

const SECONDS = 2, SECONDS_AFTER_SILENCE = 5, PATIENCE_SECONDS = 10;
const silence = document.getElementById("silence");
let heard = new Date();

// Only nodes that differ are replaced, so that the reader's selection, scroll position and screen reader stay.
function patch(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(document.adoptNode(fresh));
  } else if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = fresh.data;
  } else {
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const here = [...old.childNodes], there = [...fresh.childNodes];
    there.forEach((child, i) => (i < here.length ? patch(here[i], child) : old.append(document.adoptNode(child))));
    here.slice(there.length).forEach((child) => child.remove());
  }
}

async function look() {
  const reply = await fetch("/", {
    cache: "no-store", credentials: "omit", redirect: "error",
    signal: AbortSignal.timeout(1000 * PATIENCE_SECONDS),
  });
  if (!reply.ok) throw new Error(reply.status);
  const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
  document.title = fresh.title;
  patch(document.querySelector("main"), fresh.querySelector("main"));
}

async function follow() {
  let next = SECONDS;
  try {
    if (!document.hidden) {
      await look();
      heard = new Date();
      if (silence.textContent) silence.textContent = "";
    }
  } catch {
    const text = `The server has not answered since ${heard.toLocaleTimeString()}: it has ended, or cannot be ` +
      "reached. Below is what it said last.";
    if (silence.textContent !== text) silence.textContent = text;
    next = SECONDS_AFTER_SILENCE;
  }
  setTimeout(follow, 1000 * next);
}

setTimeout(follow, 1000 * SECONDS);
