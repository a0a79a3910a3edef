package endpoint

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
)

// Load is a version that a server announces before its bytes are loaded. [Client.List] and [Client.Info] report its
// progress. Its methods are safe for concurrent use. A nil *Load does nothing.
type Load struct{ of *server.Load }

// Progress records that done of total bytes are loaded.
func (l *Load) Progress(done, total int64) {
	if l != nil {
		l.of.Progress(done, total)
	}
}

// Fail records that the load failed, and why. The failure is listed until the name is loaded again or published.
func (l *Load) Fail(err error) {
	if l != nil {
		l.of.Fail(err)
	}
}

// Done removes the load from the list.
func (l *Load) Done() {
	if l != nil {
		l.of.Done()
	}
}
