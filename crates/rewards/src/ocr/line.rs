//! Pictures to the lines of pixels that a PP-OCR recogniser reads.
//!
//! A line is 48 pixels high. Its width follows from the picture's proportions; on the right it is filled up with zeros
//! to at least 320 pixels. Channels are in the order blue, green, red, and levels become `(level/255 − ½) / ½`.
//!
//! Pictures are resized as OpenCV's `INTER_LINEAR` does it with 8 bits a channel, bit for bit (see `resize`), because
//! the recognisers were trained on that and other programs feed them that.

use std::iter::repeat_n;

use image::RgbImage;

/// Height of every line in pixels.
pub const HEIGHT: usize = 48;
/// Width of the shortest line in pixels, its filling included.
pub const LEAST_WIDTH: usize = 320;
/// Width of the longest line in pixels. The network's memory grows with the square of the width, and a picture with
/// more than 66 times the width of its height is no line of text.
pub const MOST_WIDTH: usize = 3200;

/// Pixels as the network reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Width in pixels, the filling included.
    pub width: usize,
    /// `[3, 48, width]`: blue, green, red; row-major; −1 to 1, and 0 in the filling.
    pub values: Vec<f32>,
}

/// Why a picture is no line; reads as the end of a sentence about the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoLine {
    /// There are no pixels.
    #[error("has no pixels")]
    Empty,
    /// It would become longer than [`MOST_WIDTH`].
    #[error(
        "is {width} x {height} pixels, which is too long for one line of text; crop it to at most {} times its height",
        MOST_WIDTH / HEIGHT
    )]
    TooLong {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
}

impl Line {
    /// The line of a picture.
    ///
    /// # Errors
    ///
    /// The picture has no pixels or is too long.
    pub fn new(picture: &RgbImage) -> Result<Self, NoLine> {
        let (width, height) = picture.dimensions();
        if width == 0 || height == 0 {
            return Err(NoLine::Empty);
        }
        let (text_width, line_width) = widths(width, height);
        if line_width > MOST_WIDTH {
            return Err(NoLine::TooLong { width, height });
        }
        let pixels = resize(picture, text_width);
        let levels: Vec<f32> = (0..=u8::MAX)
            .map(|level| (f32::from(level) / 255.0 - 0.5) / 0.5)
            .collect();
        let rows = [2, 1, 0].into_iter().flat_map(|channel| {
            pixels
                .chunks_exact(text_width)
                .map(move |row| row.iter().map(move |pixel| pixel[channel]))
        });
        let values = rows.flat_map(|row| {
            let filling = repeat_n(0.0, line_width - text_width);
            row.map(|level| levels[usize::from(level)]).chain(filling)
        });
        Ok(Self {
            width: line_width,
            values: values.collect(),
        })
    }
}

/// Width of the resized picture, and of the line with its filling. A picture that is longer than the shortest line has
/// no filling, and its width is rounded down; all others are rounded up. In f64, as the reference computes it.
fn widths(width: u32, height: u32) -> (usize, usize) {
    let ratio = f64::from(width) / f64::from(height);
    let line = (HEIGHT as f64 * ratio.max(LEAST_WIDTH as f64 / HEIGHT as f64)) as usize;
    let text = (HEIGHT as f64 * ratio).ceil() as usize;
    (text.min(line), line)
}

/// The picture at a height of 48 and the given width, row by row.
///
/// OpenCV interpolates between the two nearest pixels of a row, then between the two nearest rows, with weights in
/// 2048ths; it does not widen its kernel when it shrinks, so small details alias. Halving both sides is the exception:
/// there it takes the mean of four pixels.
fn resize(picture: &RgbImage, width: usize) -> Vec<[u8; 3]> {
    let [from_width, from_height] = [picture.width() as usize, picture.height() as usize];
    let pixel = |x: usize, y: usize| picture.get_pixel(x as u32, y as u32).0;
    if [from_width, from_height] == [width, HEIGHT] {
        return picture.pixels().map(|pixel| pixel.0).collect();
    }
    if [from_width, from_height] == [2 * width, 2 * HEIGHT] {
        let places = (0..HEIGHT).flat_map(|y| (0..width).map(move |x| (2 * x, 2 * y)));
        let mean = |(x, y)| {
            let four = [pixel(x, y), pixel(x + 1, y), pixel(x, y + 1), pixel(x + 1, y + 1)];
            [0, 1, 2].map(|channel| {
                let sum: u32 = four.iter().map(|pixel| u32::from(pixel[channel])).sum();
                ((sum + 2) >> 2) as u8
            })
        };
        return places.map(mean).collect();
    }
    let columns: Vec<Between> = (0..width)
        .map(|x| Between::new(x, from_width, width).within(from_width))
        .collect();
    let filtered = |y: usize| -> Vec<[i32; 3]> {
        let mix = |between: &Between| {
            let [left, right] = between.nearest(from_width).map(|x| pixel(x, y));
            [0, 1, 2].map(|channel| {
                i32::from(left[channel]) * between.weights[0] + i32::from(right[channel]) * between.weights[1]
            })
        };
        columns.iter().map(mix).collect()
    };
    let rows = (0..HEIGHT).flat_map(|y| {
        let between = Between::new(y, from_height, HEIGHT);
        let [above, below] = between.nearest(from_height).map(filtered);
        let pairs = above.into_iter().zip(below);
        pairs.map(move |(above, below)| {
            [0, 1, 2].map(|channel| {
                // Of the product's 22 fractional bits 20 go before the two are added, as in the vector instructions
                // that OpenCV uses here.
                let part = |sum: i32, weight: i32| ((sum >> 4) * weight) >> 16;
                let sum = part(above[channel], between.weights[0]) + part(below[channel], between.weights[1]);
                ((sum + 2) >> 2).clamp(0, 255) as u8
            })
        })
    });
    rows.collect()
}

/// A place between two neighbouring pixels.
#[derive(Clone, Copy)]
struct Between {
    /// The first of the two. It may lie before the picture's first pixel, and the second one behind its last.
    first: i64,
    /// Weight of each in 2048ths.
    weights: [i32; 2],
}

impl Between {
    /// Where pixel `position` of `output` lies among `input` pixels. Rounded to f32 where OpenCV rounds.
    fn new(position: usize, input: usize, output: usize) -> Self {
        let scale = 1.0 / (output as f64 / input as f64);
        let place = ((position as f64 + 0.5) * scale - 0.5) as f32;
        let fraction = place - place.floor();
        Self {
            first: place.floor() as i64,
            weights: [1.0 - fraction, fraction].map(|weight| (weight * 2048.0).round_ties_even() as i32),
        }
    }

    /// The same with all weight on the first or last pixel where one of the two does not exist. OpenCV does this along
    /// rows; along columns it only repeats the pixel, which rounds differently.
    fn within(self, length: usize) -> Self {
        let last = length as i64 - 1;
        if (0..last).contains(&self.first) {
            return self;
        }
        Self {
            first: self.first.clamp(0, last),
            weights: [2048, 0],
        }
    }

    /// The two pixels, those that do not exist replaced by the nearest that does.
    fn nearest(self, length: usize) -> [usize; 2] {
        [self.first, self.first + 1].map(|place| place.clamp(0, length as i64 - 1) as usize)
    }
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    #[test]
    fn widths_keep_the_proportions() {
        for ((width, height), expected) in [
            ((48, 48), (48, 320)),
            ((512, 512), (48, 320)),
            ((1, 4000), (1, 320)),
            // 48·100/70 = 68.57, rounded up.
            ((100, 70), (69, 320)),
            ((320, 48), (320, 320)),
            ((640, 48), (640, 640)),
            // 48·500/70 = 342.86, rounded down because there is no filling.
            ((500, 70), (342, 342)),
        ] {
            assert_eq!(widths(width, height), expected, "{width} x {height}");
        }
    }

    #[test]
    fn levels_and_channels() {
        let line = Line::new(&RgbImage::from_pixel(48, 48, Rgb([0, 51, 255]))).expect("a line");
        assert_eq!((line.width, line.values.len()), (320, 3 * 48 * 320));
        let channel = |number: usize| &line.values[number * 48 * 320..][..48 * 320];
        for (number, level) in [(0, 1.0), (1, -0.6), (2, -1.0)] {
            for row in channel(number).chunks(320) {
                assert!(row[..48].iter().all(|value| (value - level).abs() < 1e-6));
                assert!(row[48..].iter().all(|value| *value == 0.0));
            }
        }
    }

    fn grey(width: u32, height: u32, level: impl Fn(u32, u32) -> u8) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| Rgb([level(x, y); 3]))
    }

    #[test]
    fn halving_takes_means_of_four() {
        // 10 + 20 + 31 + 40 = 101; (101 + 2) / 4 = 25.75, cut off.
        let picture = grey(96, 96, |x, y| [[10, 20], [31, 40]][y as usize % 2][x as usize % 2]);
        assert!(resize(&picture, 48).iter().all(|pixel| *pixel == [25; 3]));
    }

    #[test]
    fn shrinking_looks_at_the_two_nearest_pixels_alone() {
        // At one quarter of the size, output x lies at 4x + 1.5: half way between the second and the third of four.
        let picture = grey(192, 192, |x, _| [200, 10, 30, 0][x as usize % 4]);
        assert!(resize(&picture, 48).iter().all(|pixel| *pixel == [20; 3]));
    }

    #[test]
    fn enlarging_repeats_the_edge() {
        // 24 to 48: output 0 lies at −0.25, output 1 at 0.25, output 2 at 0.75.
        let picture = grey(24, 24, |x, _| if x == 0 { 0 } else { 200 });
        let row = &resize(&picture, 48)[..4];
        assert_eq!(row, [[0; 3], [50; 3], [150; 3], [200; 3]]);
    }

    #[test]
    fn flat_pictures_stay_flat_at_any_size() {
        for (width, height) in [(1, 1), (1, 5), (3, 200), (47, 49), (97, 95), (300, 33)] {
            let picture = grey(width, height, |_, _| 255);
            let (text_width, _) = widths(width, height);
            let pixels = resize(&picture, text_width);
            assert_eq!(pixels.len(), text_width * 48);
            // Of 4·255 both parts of the sum together lose less than 2, which the rounding makes up for.
            assert!(pixels.iter().all(|pixel| *pixel == [255; 3]), "{width} x {height}");
        }
    }

    #[test]
    fn what_is_no_line_is_refused() {
        assert_eq!(Line::new(&RgbImage::new(0, 5)), Err(NoLine::Empty));
        let error = Line::new(&RgbImage::new(4000, 10)).expect_err("too long");
        assert!(error.to_string().contains("4000 x 10"), "{error}");
        assert_eq!(Line::new(&RgbImage::new(200, 3)).expect("a line").width, 3200);
    }
}
