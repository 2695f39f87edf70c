//! Lengths of array columns.

/// Lengths in an array of the caller. A run of lengths is expanded, unless that takes more than the array: then runs are kept as runs.
///
/// Five bytes can be a thousand million lengths, so no run may take memory in proportion to its length.
pub struct Lengths<'a> {
    each: &'a mut [i64],
    state: &'a mut LengthsState,
}

/// The state between two calls.
#[derive(Default)]
pub struct LengthsState {
    /// Lengths so far.
    pub count: usize,
    pub runs: Option<Runs>,
}

/// The length that each run repeats, and the number of lengths up to its end.
#[derive(Default)]
pub struct Runs {
    pub each: Vec<i64>,
    pub ends: Vec<i64>,
}

impl<'a> Lengths<'a> {
    pub fn new(each: &'a mut [i64], state: &'a mut LengthsState) -> Self {
        Self { each, state }
    }

    pub fn count(&self) -> usize {
        self.state.count
    }

    #[inline]
    pub fn push(&mut self, length: i64) {
        match self.each.get_mut(self.state.count) {
            Some(slot) if self.state.runs.is_none() => {
                *slot = length;
                self.state.count += 1;
            }
            _ => self.keep_run(length, 1),
        }
    }

    pub fn push_run(&mut self, length: i64, count: usize) {
        match self
            .each
            .get_mut(self.state.count..self.state.count + count)
        {
            Some(slots) if self.state.runs.is_none() => {
                slots.fill(length);
                self.state.count += count;
            }
            _ => self.keep_run(length, count),
        }
    }

    #[cold]
    fn keep_run(&mut self, length: i64, count: usize) {
        let expanded = &self.each[..self.state.count.min(self.each.len())];
        let runs = self.state.runs.get_or_insert_with(|| Runs {
            each: expanded.to_vec(),
            ends: (1..=expanded.len() as i64).collect(),
        });
        self.state.count += count;
        runs.each.push(length);
        runs.ends.push(self.state.count as i64);
    }
}
