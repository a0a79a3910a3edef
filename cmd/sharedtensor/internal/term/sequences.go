package term

// The sequences of ECMA-48 and of the terminals that understand them, which are all that are in use.
const (
	// ClearLine brings the cursor to the beginning of a line that is then empty.
	ClearLine   = "\r\x1b[K"
	EnterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // another page, no cursor, no wrapping
	LeaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)
