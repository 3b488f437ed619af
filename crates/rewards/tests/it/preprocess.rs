//! What each program's preprocessing makes of pictures of all sizes and kinds.

use std::path::Path;

use image::{DynamicImage, GrayImage, ImageBuffer, Luma, Rgb, RgbImage, Rgba, RgbaImage};
use proptest::prelude::*;
use rewards::Picture;
use rewards::pictures::open;
use rewards::preprocess::{PreprocessError, Preprocessor};

const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const DEVIATION: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

fn hps(side: u32) -> Preprocessor {
    Preprocessor::hps(side.try_into().expect("positive"))
}

/// One preprocessor of each kind, with its name.
fn all(side: u32) -> Vec<(&'static str, Preprocessor)> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("settings.json");
    let write = |text: String| std::fs::write(&path, text).expect("written");
    let open_clip = |mode: &str| {
        write(format!(
            r#"{{"model_cfg": {{"vision_cfg": {{"image_size": {side}}}}}, "preprocess_cfg": {{"resize_mode": "{mode}"}}}}"#
        ));
        Preprocessor::open_clip(&path).expect("open_clip's settings")
    };
    let squash = open_clip("squash");
    let shortest = open_clip("shortest");
    write(format!(r#"{{"size": {side}, "crop_size": {side}}}"#));
    let hugging_face = Preprocessor::hugging_face(&path).expect("Hugging Face's settings");
    vec![
        ("hugging_face", hugging_face),
        ("open_ai", Preprocessor::open_ai(side.try_into().expect("positive"))),
        ("open_clip, squash", squash),
        ("open_clip, shortest", shortest),
        ("hps", hps(side)),
    ]
}

/// Numbers 0 … 1 before normalisation.
fn numbers(preprocessor: &Preprocessor, picture: &Picture) -> [Vec<f32>; 3] {
    let pixels = preprocessor.pixels(picture);
    let plane = pixels.len() / 3;
    [0, 1, 2].map(|c| {
        let channel = &pixels[c * plane..(c + 1) * plane];
        channel.iter().map(|x| x * DEVIATION[c] + MEAN[c]).collect()
    })
}

/// The columns and rows in which any pixel of a square is not black.
fn seen(preprocessor: &Preprocessor, picture: &Picture) -> [std::ops::Range<usize>; 2] {
    let side = preprocessor.size()[0] as usize;
    let channels = numbers(preprocessor, picture);
    let bright = |x: usize, y: usize| channels.iter().any(|channel| channel[y * side + x] > 1e-6);
    let range = |bright: &dyn Fn(usize) -> bool| {
        let lines: Vec<usize> = (0..side).filter(|line| bright(*line)).collect();
        lines[0]..lines[lines.len() - 1] + 1
    };
    [
        range(&|x| (0..side).any(|y| bright(x, y))),
        range(&|y| (0..side).any(|x| bright(x, y))),
    ]
}

/// Numbers before normalisation, without the margin: what is not black of a white picture of the same size.
fn inside(preprocessor: &Preprocessor, picture: &Picture) -> [Vec<f32>; 3] {
    let (width, height) = picture.dimensions();
    let white = RgbImage::from_pixel(width, height, Rgb([255; 3]));
    let [columns, rows] = seen(preprocessor, &white.into());
    let side = preprocessor.size()[0] as usize;
    numbers(preprocessor, picture).map(|channel| {
        let lines = channel.chunks_exact(side).skip(rows.start).take(rows.len());
        lines.flat_map(|line| &line[columns.clone()]).copied().collect()
    })
}

/// Writes a picture as PNG and opens it.
fn through_a_file(picture: impl Into<DynamicImage>) -> Picture {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("picture.png");
    picture.into().save(&path).expect("saved");
    open(&path).expect("opened")
}

#[track_caller]
fn assert_flat(what: &str, channels: &[Vec<f32>; 3], colour: [u8; 3]) {
    for (channel, level) in channels.iter().zip(colour) {
        let expected = f32::from(level) / 255.0;
        let off = channel.iter().find(|x| (*x - expected).abs() > 1e-6);
        assert_eq!(off, None, "{what}: {expected}");
    }
}

/// What is cut or rounded differently at one half: the reference rounds to even.
#[test]
fn hps_rounds_half_to_even_and_centres_in_black() {
    let expected = [
        ((448, 101), [0..224, 87..137]),
        ((101, 448), [87..137, 0..224]),
        ((448, 103), [0..224, 86..138]),
        ((300, 199), [0..224, 37..186]),
        ((4000, 5), [0..224, 111..112]),
    ];
    for ((width, height), place) in expected {
        let white = RgbImage::from_pixel(width, height, Rgb([255; 3]));
        let white = white.into();
        assert_eq!(seen(&hps(224), &white), place, "{width} x {height}");
        let black = numbers(&hps(224), &white)
            .concat()
            .iter()
            .filter(|x| x.abs() < 1e-6)
            .count();
        assert_eq!(
            black,
            3 * (224 * 224 - place[0].len() * place[1].len()),
            "{width} x {height}"
        );
    }
}

/// The reference neither resizes nor pads a picture whose longest side is right already, and then cannot score it; nor
/// can it score one with alpha or in grey.
#[test]
fn hps_takes_pictures_that_the_reference_cannot_score() {
    let colour = [200, 100, 50];
    let opaque = RgbImage::from_pixel(224, 112, Rgb(colour));
    let [red, green, blue] = colour;
    let faint = RgbaImage::from_pixel(224, 112, Rgba([red, green, blue, 10]));
    let expected = hps(224).pixels(&opaque.into());
    assert_eq!(seen(&hps(224), &through_a_file(faint.clone())), [0..224, 56..168]);
    assert_eq!(hps(224).pixels(&through_a_file(faint)), expected, "alpha is dropped");

    let grey = |level| hps(224).pixels(&RgbImage::from_pixel(224, 112, Rgb([level; 3])).into());
    let picture = GrayImage::from_pixel(224, 112, Luma([100]));
    assert_eq!(hps(224).pixels(&through_a_file(picture)), grey(100));
    let picture = ImageBuffer::from_pixel(224, 112, Rgb([100u16 << 8; 3]));
    assert_eq!(hps(224).pixels(&through_a_file(picture)), grey(100), "16-bit colour");
    let picture = ImageBuffer::from_pixel(224, 112, Luma([1000u16]));
    assert_eq!(
        hps(224).pixels(&through_a_file(picture)),
        grey(255),
        "16-bit grey is clamped"
    );
}

/// The picture that PyTorch 2.15.0 was given.
fn pattern(width: u32, height: u32) -> Picture {
    let level = |x, y, c: u32| ((x * 37 + y * 91 + c * 53 + x * y * 7) % 256) as u8;
    RgbImage::from_fn(width, height, |x, y| Rgb([0, 1, 2].map(|c| level(x, y, c)))).into()
}

/// `interpolate(mode="bicubic", antialias=True)` of levels/255; enlarging overshoots and is not clamped.
#[test]
fn parity_of_small_tensors() {
    let shrunk = [
        [
            0.420619, 0.485907, 0.484662, 0.483573, 0.565422, 0.549158, 0.449797, 0.474903, 0.596322,
        ],
        [
            0.506468, 0.5368, 0.474979, 0.555079, 0.534195, 0.54246, 0.534421, 0.480084, 0.488501,
        ],
        [
            0.551365, 0.570783, 0.532595, 0.484934, 0.493856, 0.466145, 0.529433, 0.472467, 0.518606,
        ],
    ];
    for (found, expected) in inside(&hps(3), &pattern(8, 8)).iter().zip(shrunk) {
        crate::fixture::assert_close("8 x 8 to 3", found, &expected, 2e-6);
    }
    // 2 x 3 to 3 x 4; a column on the right stays black.
    let enlarged = [
        [
            -0.028094, 0.05319, 0.134474, 0.188077, 0.278817, 0.369556, 0.502945, 0.607458, 0.711971, 0.719115,
            0.833085, 0.947054,
        ],
        [
            0.179749, 0.261033, 0.342317, 0.391286, 0.521877, 0.652467, 0.73544, 0.627946, 0.520453, 0.996456,
            0.512745, 0.029034,
        ],
        [
            0.387593, 0.468876, 0.55016, 0.674197, 0.764937, 0.855677, 0.543921, 0.648434, 0.752948, 0.078436,
            0.192406, 0.306375,
        ],
    ];
    for (found, expected) in inside(&hps(4), &pattern(2, 3)).iter().zip(enlarged) {
        crate::fixture::assert_close("2 x 3 to 4", found, &expected, 2e-6);
    }
}

/// Statistics of what PyTorch makes of larger pictures, without the margin: how many columns, the mean, the mean square,
/// and the pixel at the start in red, in the middle in green and at the end in blue.
#[test]
fn parity_of_large_tensors() {
    let expected = [
        (
            (448, 101, 224),
            224,
            (0.4994413, 0.2618694),
            [0.331692, 0.349665, 0.609074],
        ),
        (
            (448, 103, 224),
            224,
            (0.4994472, 0.2623922),
            [0.324548, 0.335976, 0.520393],
        ),
        (
            (300, 199, 224),
            224,
            (0.4994688, 0.2796783),
            [0.094198, 0.457523, 0.589586],
        ),
        (
            (1024, 1024, 224),
            224,
            (0.4993487, 0.2519243),
            [0.479311, 0.521088, 0.519887],
        ),
        ((5, 7, 28), 20, (0.5096816, 0.3120732), [-0.055846, 0.727634, 0.871576]),
        ((28, 28, 28), 28, (0.5014873, 0.3354308), [0.0, 0.568627, 0.850980]),
        (
            (1000, 33, 28),
            28,
            (0.4974410, 0.2475231),
            [0.505596, 0.499061, 0.505359],
        ),
    ];
    for ((width, height, side), columns, (mean, square), pixels) in expected {
        let what = format!("{width} x {height} to {side}");
        let channels = inside(&hps(side), &pattern(width, height));
        let all = channels.concat();
        let average = |f: fn(f64) -> f64| all.iter().map(|x| f(f64::from(*x))).sum::<f64>() / all.len() as f64;
        assert!((average(|x| x) - mean).abs() < 1e-6, "{what}: mean");
        assert!((average(|x| x * x) - square).abs() < 1e-6, "{what}: mean square");
        let middle = channels[1].len() / columns / 2 * columns + columns / 2;
        let found = [channels[0][0], channels[1][middle], channels[2][channels[2].len() - 1]];
        crate::fixture::assert_close(&what, &found, &pixels, 3e-6);
    }
}

/// What becomes of a faint pixel, by hand: 0.2·10 + 0.8·255 = 206 over white; 10·51/255 = 2, 255·2/51 = 10 multiplied and
/// divided; 10 dropped.
#[test]
fn each_program_has_its_own_way_with_transparency() {
    let faint: Picture = RgbaImage::from_pixel(3, 3, Rgba([10, 20, 30, 51])).into();
    for (name, preprocessor) in all(4) {
        let colour = match name {
            "hugging_face" => [206, 208, 210],
            _ => [10, 20, 30],
        };
        assert_flat(name, &numbers(&preprocessor, &faint), colour);
    }
    // One visible pixel beside an invisible one of another colour: the latter bleeds only where alpha is not multiplied.
    let beside = RgbaImage::from_fn(2, 1, |x, _| [Rgba([200, 0, 0, 255]), Rgba([0, 200, 0, 0])][x as usize]);
    let green = |preprocessor: &Preprocessor, picture: Picture| numbers(preprocessor, &picture)[1][0];
    let side_of_one = all(1);
    let named = |name: &str| &side_of_one.iter().find(|(n, _)| *n == name).expect("a preprocessor").1;
    assert!(green(named("open_clip, squash"), beside.clone().into()).abs() < 1e-6);
    assert!(green(named("open_clip, squash"), Picture::Masked(beside.clone())) > 0.3);
    assert!(green(named("hps"), beside.into()) > 0.3);
}

#[test]
fn a_missing_file_is_named() {
    let absent = Path::new("no such folder/open_clip_config.json");
    let error = Preprocessor::open_clip(absent).expect_err("absent");
    assert!(matches!(error, PreprocessError::Io { .. }), "{error:?}");
    assert!(error.to_string().contains("open_clip_config.json"), "{error}");
}

/// Extreme proportions and sizes: the declared size comes out, finite.
#[test]
fn any_size_is_taken() {
    for (width, height) in [(1, 1), (4000, 30), (30, 4000), (1, 4000), (4000, 1), (3000, 2000)] {
        for (name, preprocessor) in all(28) {
            let pixels = preprocessor.pixels(&pattern(width, height));
            assert_eq!(pixels.len(), 3 * 28 * 28, "{name}, {width} x {height}");
            assert!(pixels.iter().all(|x| x.is_finite()), "{name}, {width} x {height}");
        }
    }
}

proptest! {
    /// A picture of one colour stays of that colour everywhere but in HPS's margin, which is black.
    #[test]
    fn a_flat_picture_stays_flat(level: [u8; 3], width in 1u32..80, height in 1u32..80, side in 1u32..50) {
        let [red, green, blue] = level;
        let flat = RgbImage::from_pixel(width, height, Rgb(level));
        let opaque = RgbaImage::from_pixel(width, height, Rgba([red, green, blue, 255]));
        for picture in [flat.into(), opaque.clone().into(), Picture::Masked(opaque.clone()), Picture::Indexed(opaque)] {
            for (name, preprocessor) in all(side) {
                let channels = if name == "hps" { inside(&preprocessor, &picture) } else { numbers(&preprocessor, &picture) };
                assert_flat(name, &channels, level);
            }
        }
    }

    /// A deep grey picture of one shade comes out as that shade, clamped.
    #[test]
    fn a_flat_deep_picture_stays_flat(shade in 0u16..600, width in 1u32..60, height in 1u32..60, side in 1u32..40) {
        let picture = Picture::Deep(ImageBuffer::from_pixel(width, height, Luma([shade])));
        for (name, preprocessor) in all(side).into_iter().filter(|(name, _)| *name != "hps") {
            assert_flat(name, &numbers(&preprocessor, &picture), [shade.min(255) as u8; 3]);
        }
    }
}
