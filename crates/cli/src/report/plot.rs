//! Line plots as SVG. The pages need axes, lines and error bars, and nothing more.

use std::fmt::Write;

/// Values over iterations.
pub(crate) struct Series<'a> {
    /// Its name in the legend.
    pub(crate) name: &'a str,
    /// Iteration and value.
    pub(crate) points: Vec<(f64, f64)>,
    /// Standard error of every point, which is then drawn as a dot with a bar; empty for a plain line.
    pub(crate) errors: Vec<f64>,
}

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 24.0;
/// Okabe and Ito's palette, which colour-blind readers can tell apart.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];

/// A plot of all series; empty text if there is no point. Title and names must be escaped already.
pub(crate) fn svg(title: &str, series: &[Series<'_>]) -> String {
    let shown: Vec<&Series<'_>> = series.iter().filter(|s| !s.points.is_empty()).collect();
    if shown.is_empty() {
        return String::new();
    }
    let horizontal = Axis::over(
        shown.iter().flat_map(|s| s.points.iter().map(|p| p.0)),
        LEFT,
        WIDTH - RIGHT,
    );
    let ends = shown.iter().flat_map(|s| {
        let error = |i: usize| s.errors.get(i).copied().unwrap_or(0.0);
        s.points
            .iter()
            .enumerate()
            .flat_map(move |(i, p)| [p.1 - error(i), p.1 + error(i)])
    });
    let rows = shown.len().div_ceil(2) as f64;
    let bottom = HEIGHT - BOTTOM;
    let vertical = Axis::over(ends, bottom, TOP);
    let full = HEIGHT + 16.0 * rows;

    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {full}\" role=\"img\" font-size=\"11\" font-family=\"sans-serif\">\
         <title>{title}</title><text x=\"{LEFT}\" y=\"16\" font-size=\"13\">{title}</text>"
    );
    for tick in vertical.ticks() {
        let y = vertical.place(tick);
        line(&mut out, [LEFT, y, WIDTH - RIGHT, y], "#ddd");
        text(&mut out, LEFT - 6.0, y + 4.0, "end", &number(tick));
    }
    for tick in horizontal.ticks().into_iter().filter(|tick| tick.fract() == 0.0) {
        text(&mut out, horizontal.place(tick), bottom + 16.0, "middle", &number(tick));
    }
    for (i, series) in shown.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let at = |point: &(f64, f64)| (horizontal.place(point.0), vertical.place(point.1));
        let path: Vec<String> = series
            .points
            .iter()
            .map(at)
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        // One point makes no line, so it is drawn as a dot.
        if series.points.len() > 1 {
            let path = path.join(" ");
            let _ = write!(
                out,
                "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
            );
        }
        for (k, point) in series.points.iter().enumerate() {
            let error = series.errors.get(k);
            let (x, y) = at(point);
            if error.is_some() || series.points.len() == 1 {
                let _ = write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
            if let Some(error) = error {
                let (low, high) = (vertical.place(point.1 - error), vertical.place(point.1 + error));
                line(&mut out, [x, low, x, high], colour);
            }
        }
        let (x, y) = (LEFT + (i % 2) as f64 * 200.0, HEIGHT + 8.0 + 16.0 * (i / 2) as f64);
        line(&mut out, [x, y - 4.0, x + 14.0, y - 4.0], colour);
        text(&mut out, x + 18.0, y, "start", series.name);
    }
    out.push_str("</svg>\n");
    out
}

/// A linear scale from values to places on the page.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low == high {
            // A constant still needs a height; around 0 any will do.
            let half = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
            (low, high) = (low - half, high + half);
        }
        Self { low, high, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Three to six round numbers between the ends.
    fn ticks(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / 4.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|m| m * power)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let first = (self.low / step).ceil();
        let mut ticks: Vec<f64> = (0..8).map(|i| (first + f64::from(i)) * step).collect();
        ticks.retain(|tick| *tick <= self.high + step * 1e-9);
        ticks
    }
}

fn line(out: &mut String, [x1, y1, x2, y2]: [f64; 4], colour: &str) {
    let _ = write!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"1.2\"/>"
    );
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ = write!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#444\">{text}</text>"
    );
}

/// A tick's value, short.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        1e-3..1e5 => {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let axis = Axis::over([0.0, 10.0].into_iter(), 0.0, 100.0);
        assert_eq!(axis.ticks(), [0.0, 5.0, 10.0]);
        assert_eq!(axis.place(5.0), 50.0);
        let constant = Axis::over([2.0, 2.0].into_iter(), 0.0, 100.0);
        assert_eq!(constant.place(2.0), 50.0);
    }

    #[test]
    fn a_plot_without_points_is_left_out() {
        let empty = Series {
            name: "a",
            points: Vec::new(),
            errors: Vec::new(),
        };
        assert_eq!(svg("nothing", &[empty]), "");
    }

    #[test]
    fn tick_values_are_short() {
        assert_eq!([0.0, 0.25, 12.0, 2.5e-7].map(number), ["0", "0.25", "12", "2.5e-7"]);
    }
}
