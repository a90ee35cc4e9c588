"""Does a broker do what public cases and contracts say? Programs for any file of cases, and for any broker."""
