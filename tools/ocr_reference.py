"""Pictures of text, and what rapidocr reads on them: the reference values of the reward `ocr`.

    pip install -r tools/requirements-ocr.txt
    python tools/ocr_reference.py crates/rewards/tests/ocr

Draws small pictures with the font that comes with Pillow (Aileron, CC0), writes them as PNG, and runs the recogniser of
the package rapidocr-onnxruntime on each alone, without its detector. `expected.json` then holds, for every picture:

  width            of the network's input in pixels, the filling included
  resized          width of the picture in it, and two sums over its levels (blue, green, red; row by row): Σ level and
                   Σ place·level mod 2^32, place counted from 1
  text, confidence what rapidocr reads
  classes          the likeliest class of every step
  probabilities    its probability
  accuracy         for some prompts, Flow-GRPO's OCR accuracy of the text

With --compare FILE it compares raw probabilities with those that a program wrote for the same pictures: see
`crates/rewards/tests/it/ocr_model.rs`, which writes them when OCR_PROBABILITIES names a folder.
"""
import json
import sys
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

# name, width, height, text, size of the font, colour of the text, colour of the ground (with alpha: transparent)
PICTURES = [
    ("hello", 320, 48, "Hello World", 32, (0, 0, 0), (255, 255, 255)),
    ("open", 128, 48, "OPEN 24h", 26, (255, 230, 40), (20, 40, 160)),
    ("go", 32, 32, "GO", 18, (200, 20, 20), (255, 255, 255)),
    ("stop", 64, 64, "STOP", 22, (255, 255, 255), (190, 20, 30)),
    ("cafe", 96, 96, "Café", 40, (30, 90, 30), (240, 230, 200)),
    ("tall", 40, 100, "A", 40, (0, 0, 0), (200, 220, 255)),
    ("long", 320, 20, "The quick brown fox jumps", 18, (0, 0, 0), (255, 255, 255)),
    ("glass", 160, 48, "Balloon", 34, (0, 60, 200, 255), (0, 0, 0, 0)),
    ("blank", 48, 48, "", 10, (0, 0, 0), (255, 255, 255)),
]

PROMPTS = ['a sign that says "Hello World"', 'the word "stop" in red', 'a "balloon"', 'a neon "open 24"', 'a cup, "Cafe"', '"A"']


def draw(width, height, text, size, colour, ground):
    picture = Image.new("RGBA" if len(ground) == 4 else "RGB", (width, height), ground)
    font = ImageFont.load_default(size)
    ImageDraw.Draw(picture).text((width / 2, height / 2), text, fill=colour, font=font, anchor="mm")
    return picture


def over_white(picture):
    """Blue, green, red; transparent pixels over white, rounded to the nearest."""
    levels = np.asarray(picture.convert("RGBA")).astype(np.int64)
    alpha = levels[:, :, 3:]
    flat = (alpha * levels[:, :, :3] + (255 - alpha) * 255 + 127) // 255
    return np.ascontiguousarray(flat[:, :, ::-1].astype(np.uint8))


def levenshtein(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def accuracy(prompt, text):
    """Flow-GRPO's OcrScorer."""
    wanted = prompt.split('"')[1].replace(" ", "").lower()
    read = text.replace(" ", "").lower()
    distance = 0 if wanted in read else min(levenshtein(read, wanted), len(wanted))
    return 1 - distance / len(wanted)


def reference(recogniser, pixels):
    height, width = pixels.shape[:2]
    line = recogniser.resize_norm_img(pixels, max(320 / 48, width / height))
    probabilities = recogniser.session(line[np.newaxis])[0][0]
    ((text, confidence),), _ = recogniser([pixels])
    text_width = min(int(np.ceil(48 * (width / height))), line.shape[2])
    resized = cv2.resize(pixels, (text_width, 48)).reshape(-1).astype(np.int64)
    places = np.arange(1, resized.size + 1)
    return probabilities, {
        "width": line.shape[2],
        "resized": [text_width, int(resized.sum()), int((places * resized).sum() % 2**32)],
        "text": text,
        "confidence": confidence,
        "classes": probabilities.argmax(1).tolist(),
        "probabilities": [round(float(p), 6) for p in probabilities.max(1)],
        "accuracy": [accuracy(prompt, text) for prompt in PROMPTS],
    }


def main():
    if len(sys.argv) not in (2, 4) or sys.argv[2:3] not in ([], ["--compare"]):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    recogniser = RapidOCR().text_rec
    expected = {"prompts": PROMPTS, "pictures": {}}
    worst = 0
    for name, *rest in PICTURES:
        file = folder / f"{name}.png"
        if len(sys.argv) == 2:
            draw(*rest).save(file, optimize=True)
        probabilities, expected["pictures"][name] = reference(recogniser, over_white(Image.open(file)))
        if len(sys.argv) == 4:
            found = np.fromfile(Path(sys.argv[3]) / f"{name}.f32", "<f4").reshape(probabilities.shape)
            difference = np.abs(found - probabilities).max()
            seen = probabilities > 1e-6
            relative = np.abs(np.log(found[seen]) - np.log(probabilities[seen])).max()
            print(f"{name}: probabilities differ by up to {difference:.2e}, log-probabilities above 1e-6 by {relative:.2e}")
            worst = max(worst, difference)
        else:
            print(name, expected["pictures"][name]["text"], expected["pictures"][name]["accuracy"])
    if len(sys.argv) == 4:
        sys.exit(int(worst > 1e-4))
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in expected["pictures"].items()]
    pictures = ",\n".join(lines)
    text = f'{{\n"prompts": {json.dumps(PROMPTS)},\n"pictures": {{\n{pictures}\n}}\n}}\n'
    (folder / "expected.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
