//! The pages of a column, with a footer that fits.

#![no_main]

use cdfd_native::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: fuzzing::begin(), |data: &[u8]| fuzzing::read_column(data));
