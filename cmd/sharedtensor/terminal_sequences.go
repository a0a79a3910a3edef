package main

// The sequences of ECMA-48 and of the terminals that understand them, which are all that are in use.
const (
	// clearLine brings the cursor to the beginning of a line that is then empty.
	clearLine   = "\r\x1b[K"
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // another page, no cursor, no wrapping
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)
