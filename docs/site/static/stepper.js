// A slider over the pictures of an algorithm, round by round, as in the notebook. Without this script the page
// shows the one picture of all rounds.
"use strict";

function makeStepper(figure) {
  const picture = figure.querySelector("img");
  const frames = figure.dataset.frames.split(" ");
  const all = picture.getAttribute("src");
  const last = frames.length - 1;

  const button = (text, label) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.setAttribute("aria-label", label);
    return made;
  };
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", min: 0, max: last, value: 0 });
  slider.setAttribute("aria-label", "round");
  const said = document.createElement("output");
  const play = button("▶", "play the rounds");
  const whole = button("all rounds", "show all rounds in one picture");

  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶";
  };
  const show = (round) => {
    slider.value = round;
    picture.src = frames[round];
    picture.style.width = `${figure.dataset.width}px`;
    said.textContent = round === 0 ? "at the beginning" : `round ${round} of ${last}`;
  };
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  whole.addEventListener("click", () => { stop(); picture.src = all; picture.style.width = ""; said.textContent = "all rounds"; });
  play.addEventListener("click", () => {
    if (timer !== null) { stop(); return; }
    show(Number(slider.value) === last ? 0 : Number(slider.value));
    play.textContent = "⏸";
    timer = setInterval(() => {
      if (Number(slider.value) < last) { show(Number(slider.value) + 1); }
      if (Number(slider.value) === last) { stop(); }
    }, 1200);
  });

  const controls = document.createElement("div");
  controls.className = "stepper-controls";
  controls.append(play, slider, said, whole);
  figure.prepend(controls);
  said.textContent = "all rounds";
}

document.querySelectorAll("figure.stepper").forEach(makeStepper);
