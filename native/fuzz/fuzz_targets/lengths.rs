//! Page headers, footers and the lengths of strings, as they are parsed before anything believes them.

#![no_main]

use cdfd_native::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzzing::parse(data));
