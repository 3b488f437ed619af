//! Where a picture's pixels go: its size after resizing, and which part of it is seen.

use crate::resample::Target;

/// What becomes of a picture's width and height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resize {
    /// The shorter side gets this length, the other keeps the proportions, its fraction dropped.
    Shortest(u32),
    /// The longer side gets this length, the other keeps the proportions, rounded, half to even, and at least 1.
    Longest(u32),
    /// Width and height, whatever the proportions.
    Exact([u32; 2]),
}

impl Resize {
    /// The new width and height of a picture that has pixels.
    pub(super) fn apply(self, picture: [u32; 2]) -> [u32; 2] {
        let [shorter, longer] = [picture[0].min(picture[1]), picture[0].max(picture[1])];
        match self {
            Self::Exact(size) => size,
            Self::Shortest(side) => picture.map(|length| {
                let scaled = u64::from(side) * u64::from(length) / u64::from(shorter);
                u32::try_from(scaled).unwrap_or(u32::MAX)
            }),
            Self::Longest(side) => {
                // The scale is rounded before it is used, as the reference does it.
                let scale = f64::from(side) / f64::from(longer);
                picture.map(|length| ((f64::from(length) * scale).round_ties_even() as u32).max(1))
            }
        }
    }
}

/// What becomes of half a pixel when the rest that is cut off is odd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Centre {
    /// Half of the rest, rounded down: the larger part goes from the right and bottom.
    RoundedDown,
    /// Half of the rest, rounded to an even number.
    RoundedToEven,
}

/// How pictures of any size become pictures of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// The resizing, which comes first.
    pub(super) resize: Resize,
    /// Width and height of what is seen, cut out of the middle, or with a margin around the resized picture.
    pub(super) size: [u32; 2],
    /// Where the middle is.
    pub(super) centre: Centre,
}

/// Where one picture goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The resizing, and the part that is seen.
    pub(super) target: Target,
    /// Width of the margin on the left and height of that on top.
    pub(super) margin: [u32; 2],
}

impl Frame {
    /// Where a picture of this width and height goes; neither is 0.
    pub(super) fn place(&self, picture: [u32; 2]) -> Place {
        let full = self.resize.apply(picture);
        Place {
            target: Target {
                full,
                offset: [0, 1].map(|axis: usize| self.centre.of(full[axis].saturating_sub(self.size[axis]))),
                size: [0, 1].map(|axis: usize| full[axis].min(self.size[axis])),
            },
            margin: [0, 1].map(|axis: usize| self.size[axis].saturating_sub(full[axis]) / 2),
        }
    }
}

impl Centre {
    /// What is cut off on the left or on top of all that is cut off along an axis.
    fn of(self, rest: u32) -> u32 {
        let half = rest / 2;
        match self {
            Self::RoundedDown => half,
            // Half of an odd number lies between two numbers, one of which is even.
            Self::RoundedToEven => half + rest % 2 * (half % 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_side_loses_its_fraction() {
        let shortest = Resize::Shortest(28);
        assert_eq!(shortest.apply([40, 62]), [28, 43], "43.4");
        assert_eq!(shortest.apply([97, 48]), [56, 28], "56.58");
        assert_eq!(shortest.apply([28, 28]), [28, 28]);
        assert_eq!(shortest.apply([4000, 1]), [112_000, 28]);
        assert_eq!(Resize::Exact([3, 4]).apply([4000, 1]), [3, 4]);
    }

    /// Halves go to the even neighbour, so 50.5 becomes 50, and nothing vanishes.
    #[test]
    fn the_shorter_side_is_rounded_half_to_even() {
        let longest = Resize::Longest(224);
        assert_eq!(longest.apply([448, 101]), [224, 50], "50.5");
        assert_eq!(longest.apply([448, 103]), [224, 52], "51.5");
        assert_eq!(longest.apply([300, 199]), [224, 149], "148.59");
        assert_eq!(longest.apply([199, 300]), [149, 224]);
        assert_eq!(longest.apply([224, 112]), [224, 112]);
        assert_eq!(longest.apply([1, 1]), [224, 224]);
        assert_eq!(longest.apply([4000, 5]), [224, 1], "0.28");
    }

    /// Rests of 1, 3, 5 and 7 pixels: half of them is 0.5, 1.5, 2.5 and 3.5.
    #[test]
    fn the_two_centres_differ_in_every_other_odd_rest() {
        let rests = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(rests.map(|rest| Centre::RoundedDown.of(rest)), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(
            rests.map(|rest| Centre::RoundedToEven.of(rest)),
            [0, 0, 1, 2, 2, 2, 3, 4]
        );
    }

    #[test]
    fn what_is_too_large_is_cut_and_what_is_too_small_gets_a_margin() {
        let frame = |resize| Frame {
            resize,
            size: [28, 28],
            centre: Centre::RoundedToEven,
        };
        let target = |full, offset, size| Target { full, offset, size };
        let place = frame(Resize::Shortest(28)).place([40, 62]);
        assert_eq!(place.target, target([28, 43], [0, 8], [28, 28]), "half of 15 is 7.5");
        assert_eq!(place.margin, [0, 0]);
        let place = frame(Resize::Longest(28)).place([40, 62]);
        assert_eq!(place.target, target([18, 28], [0, 0], [18, 28]));
        assert_eq!(place.margin, [5, 0]);
        let odd = frame(Resize::Longest(28)).place([28, 13]);
        assert_eq!(odd.margin, [0, 7], "the larger part of 15 goes to the bottom");
    }
}
