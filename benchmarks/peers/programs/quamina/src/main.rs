//! quamina as a program of `benchmarks.peers`: how it is asked and what it says is in `benchmarks/peers/matchers.py`.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};
use std::{env, fs};

use quamina::{MatcherBuildMode, Quamina, QuaminaBuilder, QuaminaError};

const ARENA_BYTES: usize = 8 << 30; // by default 10 MB, too few for 10,000 filters
const OF_A_VALUE_MAX: usize = 250; // quamina 0.7 panics where 256 filters begin with one value of one field

/// As few matchers as quamina's limit allows, one for nearly all filters; equal filters are one for them.
struct Matcher {
    parts: Vec<Quamina<usize>>,
    rules: Vec<Vec<u32>>,
}

impl Matcher {
    fn new(texts: &str) -> Result<Self, QuaminaError> {
        let mut made = Matcher {
            parts: Vec::new(),
            rules: Vec::new(),
        };
        let mut known: HashMap<&str, usize> = HashMap::new();
        let mut begins: HashMap<&str, usize> = HashMap::new();
        for (number, text) in texts.lines().enumerate() {
            let next = made.rules.len();
            let at = *known.entry(text).or_insert(next);
            if at == next {
                let same = begins.entry(text.split(']').next().unwrap()).or_default();
                let part = *same / OF_A_VALUE_MAX;
                *same += 1;
                if part == made.parts.len() {
                    made.parts.push(
                        QuaminaBuilder::new()
                            .with_arena_byte_budget(ARENA_BYTES)
                            .build()?,
                    );
                    made.parts[part].set_matcher_build_mode(MatcherBuildMode::BuiltForSpeed);
                }
                made.parts[part].add_pattern(next, text)?;
                made.rules.push(Vec::new());
            }
            made.rules[at].push(number as u32);
        }
        Ok(made)
    }

    fn rules_of(&self, event: &[u8]) -> Result<Vec<u32>, QuaminaError> {
        let mut found = Vec::new();
        for part in &self.parts {
            for at in part.matches_for_event(event)? {
                found.extend_from_slice(&self.rules[at]);
            }
        }
        Ok(found)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().collect();
    let [_, events, rules, sample] = arguments.as_slice() else {
        return Err("usage: quamina-peer EVENTS RULES SAMPLE".into());
    };
    let (events, rules) = (fs::read(events)?, fs::read_to_string(rules)?);
    let events: Vec<&[u8]> = events
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .collect();
    let started = Instant::now();
    let matcher = Matcher::new(&rules)?;
    matcher.rules_of(events[0])?; // the first question builds what the others ask
    let build_s = started.elapsed().as_secs_f64();

    let (mut matches, mut sum) = (0u64, 0u64);
    for (number, event) in events.iter().take(sample.parse()?).enumerate() {
        for rule in matcher.rules_of(event)? {
            matches += 1;
            sum += (number as u64 + 1) * (u64::from(rule) + 1);
        }
    }
    println!(r#"{{"build_s":{build_s:.3},"matches":{matches},"sum":{sum}}}"#);
    io::stdout().flush()?;

    for line in io::stdin().lock().lines() {
        let run = Duration::from_secs_f64(line?.parse()?);
        let (started, mut asked, mut matches) = (Instant::now(), 0u64, 0u64);
        'run: loop {
            for event in &events {
                if asked % 64 == 0 && started.elapsed() >= run {
                    break 'run;
                }
                matches += matcher.rules_of(event)?.len() as u64;
                asked += 1;
            }
        }
        let wall_s = started.elapsed().as_secs_f64();
        println!(r#"{{"events":{asked},"matches":{matches},"wall_s":{wall_s:.6}}}"#);
        io::stdout().flush()?;
    }
    Ok(())
}
