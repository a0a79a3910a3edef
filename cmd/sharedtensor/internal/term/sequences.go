package term

// Control sequences of ECMA-48 and of xterm, which common terminals support.
const (
	// ClearLine clears the line and moves the cursor to its beginning.
	ClearLine   = "\r\x1b[K"
	EnterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // alternate screen, hidden cursor, no wrapping
	LeaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)
