//! Memory of pages that are no longer referred to, for the next pages. The kernel clears new memory, and Rust clears it again.

use std::collections::{TryReserveError, VecDeque};
use std::ops::Range;
use std::sync::Mutex;

use bytes::Bytes;

use super::charge::lock;

/// How many pages are kept.
const PAGES: usize = 4;
/// Bytes of a page that is kept: others take little time, or much memory.
const KEPT_BYTES: Range<usize> = 64 << 10..2 << 20;

/// A page, and how many bytes its memory has.
pub type Page = (Bytes, usize);

/// Pages of columns that are read together.
#[derive(Default)]
pub struct Spares(Mutex<VecDeque<Page>>);

impl Spares {
    /// Keeps a page to use its memory again once nothing refers to it.
    pub fn keep(&self, page: Page) {
        if !KEPT_BYTES.contains(&page.1) {
            return;
        }
        let mut pages = lock(&self.0);
        if pages.len() == PAGES {
            pages.pop_front();
        }
        pages.push_back(page);
    }

    /// Memory for a page of `size` bytes. It may have bytes of an earlier page, and is touched no more than that.
    pub fn take(&self, size: usize) -> Result<Vec<u8>, TryReserveError> {
        let mut pages = lock(&self.0);
        let place = pages
            .iter()
            .position(|(page, room)| (size..=4 * size).contains(room) && page.is_unique());
        if let Some((page, _)) = place.and_then(|place| pages.remove(place)) {
            return Ok(page.into());
        }
        // Pages of a column differ in size.
        let room = if size < KEPT_BYTES.start {
            size
        } else {
            size.next_multiple_of(KEPT_BYTES.start)
        };
        let mut page = Vec::new();
        page.try_reserve_exact(room)?;
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 100 << 10;

    #[test]
    fn the_memory_of_a_page_is_used_again_once_nothing_refers_to_it() {
        let spares = Spares::default();
        let page = Bytes::from(vec![7; SIZE]);
        spares.keep((page.clone(), SIZE));
        let length_of = |size| spares.take(size).unwrap().len();
        assert_eq!(length_of(SIZE), 0);
        drop(page);
        assert_eq!(length_of(SIZE + 1), 0);
        assert_eq!(length_of(SIZE - 1), SIZE);
        assert_eq!(length_of(SIZE), 0);
    }

    #[test]
    fn few_pages_of_usual_sizes_are_kept() {
        let spares = Spares::default();
        for size in [SIZE; PAGES + 1].into_iter().chain([100, 3 << 20]) {
            spares.keep((vec![0; size].into(), size));
        }
        assert_eq!(spares.take(100).unwrap().len(), 0);
        assert_eq!(spares.take(3 << 20).unwrap().len(), 0);
        let kept = (0..9).filter(|_| spares.take(SIZE).unwrap().len() == SIZE);
        assert_eq!(kept.count(), PAGES);
    }
}
