//! `treegrpo generate` and `treegrpo score`

use std::fs;

use serde_json::Value;

use crate::support::{Folder, asset};

#[test]
fn the_same_arguments_draw_the_same_picture() {
    let folder = Folder::new();
    let model = asset("");
    let draw = |seed: &str, out: &str| {
        let arguments = [
            "generate",
            "--model",
            &model,
            "--prompt",
            "flat icon of a cat",
            "--steps",
            "4",
            "--t5-tokens",
            "16",
        ];
        folder.succeed(&[&arguments[..], &["--seed", seed, "--out", out]].concat());
        fs::read(folder.path(out)).unwrap()
    };
    let picture = draw("1", "a.png");
    assert_eq!(png_size(&picture), (64, 64));
    assert_eq!(picture, draw("1", "b.png"));
    assert_ne!(picture, draw("2", "c.png"));
    let left: Vec<_> = fs::read_dir(folder.path(""))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(
        left.iter().all(|name| !name.display().to_string().ends_with(".part")),
        "{left:?}"
    );
}

#[test]
fn several_prompts_make_a_grid() {
    let folder = Folder::new();
    let model = asset("");
    let told = folder.succeed(&[
        "generate",
        "--model",
        &model,
        "--prompts",
        "train.txt",
        "--steps",
        "1",
        "--guidance",
        "1",
        "--out",
        "grid.png",
    ]);
    assert!(told.contains("2 pictures"), "{told}");
    // Two pictures of 64 pixels with a gap of two between them.
    assert_eq!(png_size(&fs::read(folder.path("grid.png")).unwrap()), (130, 64));
}

#[test]
fn scores_come_as_json_and_as_a_table() {
    let folder = Folder::new();
    fs::create_dir(folder.path("pictures")).unwrap();
    for name in ["pictures/1.png", "pictures/2.png"] {
        fs::copy(asset("preview.png"), folder.path(name)).unwrap();
    }
    let scorer = format!("clip={}", asset("scorer"));
    let arguments = [
        "score",
        "--scorer",
        &scorer,
        "--scorer",
        "jpeg",
        "--image",
        "pictures",
        "--prompts",
        "train.txt",
    ];
    let answer: Value = serde_json::from_str(&folder.succeed(&[&arguments[..], &["--json"]].concat())).unwrap();
    let images = answer["images"].as_array().unwrap();
    assert_eq!(images.len(), 2);
    assert_eq!(images[0]["prompt"], "flat icon of a cat");
    assert_eq!(images[1]["image"], "pictures/2.png");
    let score = |image: usize, name: &str| images[image]["scores"][name].as_f64().unwrap();
    assert!(score(0, "clip").abs() <= 1.0);
    assert_ne!(score(0, "clip"), score(1, "clip"), "the prompts differ");
    assert_eq!(
        score(0, "jpeg-compressibility"),
        score(1, "jpeg-compressibility"),
        "it reads no prompt"
    );
    assert_eq!(answer["truncated_prompts"]["clip"], 0);

    let table = folder.succeed(&arguments);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].contains("clip") && lines[3].starts_with("mean"), "{table}");
}

/// Width and height, from the first chunk of a PNG file.
fn png_size(file: &[u8]) -> (u32, u32) {
    assert_eq!(&file[..8], b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}
