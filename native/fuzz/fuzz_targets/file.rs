//! Whole files.

#![no_main]

use cdfd_native::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: fuzzing::begin(), |data: &[u8]| fuzzing::read_file(data));
