//! Whether columns side by side agree about the lists and structs that they are in.
//!
//! Each leaf column stores these for itself. The crate `parquet` takes them from the first one, so the values of the others would be in the rows
//! of the first one's lists. Two neighbours are compared while their pages are read: of each, what the other has not had yet is kept.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use super::charge::lock;
use super::failure::{Result, damaged};
use super::file::{Leaf, Shared};
use super::levels::{Levels, Unpacked};

/// Levels of so many values are compared together: what is made of them stays in the processor's cache.
const VALUES: usize = 4096;
/// Where a row group ends.
const END: u16 = u16::MAX;

/// The levels of some values, of which each is a repetition level and a definition level.
#[derive(Clone, Copy)]
enum Part<'a> {
    Same(u16, usize),
    Each(&'a [u16]),
    /// Of a page that was not read, because no row of it is wanted.
    Skipped(usize),
}

impl<'a> Part<'a> {
    /// Levels of a column that is in no list. `room` is for them.
    fn of_rows(definition: &[u8], shared: Shared, room: &'a mut [u16; VALUES]) -> Self {
        let most = shared.definition;
        let level = |level: &u8| (*level).min(most);
        let least = definition.iter().map(level).fold(most, u8::min);
        let largest = definition.iter().map(level).fold(0, u8::max);
        if least == largest {
            return Self::Same(least.into(), definition.len());
        }
        let levels = room.iter_mut().zip(definition);
        levels.for_each(|(room, definition)| *room = level(definition).into());
        Self::Each(&room[..definition.len()])
    }

    /// Levels of a column of lists, as many of both. Values of further lists within the group that is shared do not count.
    fn of_lists(
        repetition: &[u8],
        definition: &[u8],
        shared: Shared,
        room: &'a mut [u16; VALUES],
    ) -> Self {
        let levels = repetition.iter().zip(definition);
        let levels = levels.map(|(repetition, definition)| {
            u16::from(*repetition) << 8 | u16::from((*definition).min(shared.definition))
        });
        if repetition.iter().copied().fold(0, u8::max) <= shared.repetition {
            room.iter_mut()
                .zip(levels)
                .for_each(|(room, level)| *room = level);
            return Self::Each(&room[..repetition.len()]);
        }
        let mut count = 0;
        // Without branches.
        for level in levels {
            room[count] = level;
            count += usize::from(level >> 8 <= shared.repetition.into());
        }
        Self::Each(&room[..count])
    }

    fn len(&self) -> usize {
        match self {
            Self::Same(_, count) | Self::Skipped(count) => *count,
            Self::Each(levels) => levels.len(),
        }
    }

    fn split(self, count: usize) -> (Self, Self) {
        match self {
            Self::Same(level, all) => (Self::Same(level, count), Self::Same(level, all - count)),
            Self::Skipped(all) => (Self::Skipped(count), Self::Skipped(all - count)),
            Self::Each(levels) => {
                let (first, others) = levels.split_at(count);
                (Self::Each(first), Self::Each(others))
            }
        }
    }

    /// Whether as many levels are the same.
    fn agrees(self, other: Self) -> bool {
        match (self, other) {
            (Self::Skipped(_), _) | (_, Self::Skipped(_)) => true,
            (Self::Same(one, _), Self::Same(other, _)) => one == other,
            (Self::Same(level, _), Self::Each(levels))
            | (Self::Each(levels), Self::Same(level, _)) => {
                levels.iter().all(|each| *each == level)
            }
            (Self::Each(one), Self::Each(other)) => one == other,
        }
    }
}

/// Of two neighbours, what one of them has had and the other one not.
#[derive(Default)]
struct Ahead {
    is_second: bool,
    parts: VecDeque<Waiting>,
    /// Those of all parts, after those that were compared.
    levels: Vec<u16>,
    compared: usize,
}

/// A part that waits.
enum Waiting {
    Same(u16, usize),
    Each(usize),
    Skipped(usize),
}

impl Ahead {
    fn push(&mut self, part: Part<'_>) {
        let last = self.parts.back_mut();
        match (part, last) {
            (Part::Same(level, count), Some(Waiting::Same(before, sum))) if *before == level => {
                *sum += count;
            }
            (Part::Same(level, count), _) => self.parts.push_back(Waiting::Same(level, count)),
            (Part::Skipped(count), _) => self.parts.push_back(Waiting::Skipped(count)),
            (Part::Each(levels), last) => {
                if let Some(Waiting::Each(sum)) = last {
                    *sum += levels.len();
                } else {
                    self.parts.push_back(Waiting::Each(levels.len()));
                }
                if self.compared > self.levels.len() / 2 {
                    self.levels.drain(..std::mem::take(&mut self.compared));
                }
                self.levels.extend_from_slice(levels);
            }
        }
    }

    /// Compares the beginning of a part with what waits, and returns the rest of it.
    fn compare<'a>(&mut self, part: Part<'a>) -> Option<Part<'a>> {
        let waiting = self.parts.front_mut()?;
        let (Waiting::Same(_, left) | Waiting::Each(left) | Waiting::Skipped(left)) = waiting;
        let count = part.len().min(*left);
        *left -= count;
        let is_last = *left == 0;
        let known = match waiting {
            Waiting::Same(level, _) => Part::Same(*level, count),
            Waiting::Skipped(_) => Part::Skipped(count),
            Waiting::Each(_) => {
                let levels = &self.levels[self.compared..][..count];
                self.compared += count;
                Part::Each(levels)
            }
        };
        let (first, others) = part.split(count);
        let agrees = known.agrees(first);
        if is_last {
            self.parts.pop_front();
        }
        agrees.then_some(others)
    }
}

/// A column beside another one that is in the same lists or structs.
pub struct Sibling {
    shared: Shared,
    other: Arc<Leaf>,
    is_second: bool,
    ahead: Arc<Mutex<Ahead>>,
}

impl Sibling {
    /// By number, the siblings of some of a file's leaves.
    pub fn of(leaves: &[Arc<Leaf>], some: &[usize]) -> HashMap<usize, Siblings> {
        let mut siblings = HashMap::<usize, Siblings>::new();
        for pair in some.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            let between = leaves[first + 1..=second].iter().map(|leaf| leaf.shared);
            let Some(shared) = between.min().filter(|shared| *shared > Shared::default()) else {
                continue;
            };
            let ahead = Arc::<Mutex<Ahead>>::default();
            for (leaf, other) in [(first, second), (second, first)] {
                siblings.entry(leaf).or_default().0.push(Arc::new(Self {
                    shared,
                    other: Arc::clone(&leaves[other]),
                    is_second: leaf == second,
                    ahead: Arc::clone(&ahead),
                }));
            }
        }
        siblings
    }

    fn compare(&self, mut part: Part<'_>) -> Result<()> {
        let ahead = &mut *lock(&self.ahead);
        while part.len() > 0 {
            if ahead.parts.is_empty() || ahead.is_second == self.is_second {
                ahead.is_second = self.is_second;
                ahead.push(part);
                return Ok(());
            }
            part = ahead.compare(part).ok_or_else(|| {
                damaged!(
                    "its lists or structs are not those of column '{:.200}'",
                    self.other.path
                )
            })?;
        }
        Ok(())
    }
}

/// The siblings of a column: at most the one before it and the one after it.
#[derive(Clone, Default)]
pub struct Siblings(Vec<Arc<Sibling>>);

impl Siblings {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares the levels of a page with those of the columns beside it, if it is in a list.
    pub fn compare_lists(&self, repetition: &[u8], definition: &[u8]) -> Result<()> {
        let mut levels = repetition.chunks(VALUES).zip(definition.chunks(VALUES));
        levels.try_for_each(|(repetition, definition)| {
            self.compare(|shared, room| Part::of_lists(repetition, definition, shared, room))
        })
    }

    /// The same of a column that is in no list.
    pub fn compare_rows(&self, definition: Levels<'_>) -> Result<()> {
        definition.unpack_some(VALUES, |some| {
            self.compare(|shared, room| match some {
                Unpacked::Same(level, count) => {
                    Part::Same(level.min(shared.definition).into(), count)
                }
                Unpacked::Each(levels) => Part::of_rows(levels, shared, room),
            })
        })
    }

    /// The same of a page that is not read.
    pub fn skip_rows(&self, count: usize) -> Result<()> {
        self.compare(|_, _| Part::Skipped(count))
    }

    /// The column's row group ends. That of its siblings has to, too.
    pub fn end(&self) -> Result<()> {
        self.compare(|_, _| Part::Same(END, 1))
    }

    fn compare(&self, part_of: impl Fn(Shared, &mut [u16; VALUES]) -> Part<'_>) -> Result<()> {
        let mut room = [0; VALUES];
        match &self.0[..] {
            [one, other] if one.shared == other.shared => {
                let part = part_of(one.shared, &mut room);
                one.compare(part)?;
                other.compare(part)
            }
            all => all
                .iter()
                .try_for_each(|one| one.compare(part_of(one.shared, &mut room))),
        }
    }
}
