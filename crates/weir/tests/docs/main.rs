//! The pages of the documentation hold: links lead somewhere, config files are such, recipes work.
//!
//! The command lines in them are held to the command's own definition beside it (`cli::pages` of the program).

mod numbers;
mod pages;
mod recipes;
