//! One declaration for each of the reasons that clients, metrics and logs are told.

/// Makes an enum of reasons, each declared once: variant, status, name, text.
macro_rules! reasons {
    (
        $(#[$about:meta])*
        pub enum $reason:ident {
            $($variant:ident, $status:literal, $name:literal, $text:literal;)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $reason {
            $(#[doc = $text] $variant,)*
        }

        impl $reason {
            /// Every reason, in the order of the discriminants: the index of a counter.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The status of the reply to a client.
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// The name in metrics and logs.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// One clause for people.
            pub fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}
