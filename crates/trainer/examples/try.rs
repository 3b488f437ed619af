use std::path::Path;
use burn::tensor::Device;
use trainer::config::Experiment;
use trainer::metrics::*;
use trainer::run::Run;
struct P;
impl Observer for P {
    fn note(&mut self, line: &str) { println!("{line}"); }
    fn stage(&mut self, _: u64, _: &'static str) {}
    fn iteration(&mut self, m: &IterationMetrics) {
        println!("{} w{:?} r {:.4} std {:.4} gn {:.3e} dth {:.3e} |r-1| {:.1e} enc {:.2} roll {:.2} dec {:.2} sc {:.2} up {:.2}", m.iteration, m.window, m.get("reward/clip"), m.get("reward/clip/group_std"), m.get("grad_norm"), m.get("parameter_change"), m.get("first_ratio_error"), m.get("seconds/encode"), m.get("seconds/rollout"), m.get("seconds/decode"), m.get("seconds/score"), m.get("seconds/update"));
    }
    fn evaluation(&mut self, m: &EvaluationMetrics) {
        for (n, p) in &m.rewards { for (g, s) in p { println!("   EVAL {n} {g}: {:.4} ± {:.4} change {:+.4} = {:.1} se", s.mean, s.standard_error, s.change, s.change / s.change_standard_error); } }
        println!("   eval {:.1}s", m.seconds);
    }
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let e = Experiment::open(Path::new(&a[1]), &a[3..]).unwrap_or_else(|e| { eprintln!("error: {e}"); std::process::exit(1) });
    let mut p = P;
    let mut run = Run::open(e, Path::new(&a[2]), false, &Device::flex(), &mut p).unwrap_or_else(|e| { eprintln!("error: {e}"); std::process::exit(1) });
    if let Err(e) = run.train(&mut p) { eprintln!("error: {e}"); std::process::exit(1) }
}
