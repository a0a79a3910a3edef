package endpoint

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/models"
)

// Load is a version that a server is going to publish, announced before its bytes are there: clients see in
// [Client.List] and [Client.Info] how far it is. Its methods are safe for concurrent use. A nil *Load does nothing.
type Load struct{ of *models.Load }

// Progress says that done of total bytes are loaded.
func (l *Load) Progress(done, total int64) {
	if l != nil {
		l.of.Progress(done, total)
	}
}

// Fail says that nothing will be published, and why. Clients see it until the name is loaded again.
func (l *Load) Fail(err error) {
	if l != nil {
		l.of.Fail(err)
	}
}

// Done takes the load off the list.
func (l *Load) Done() {
	if l != nil {
		l.of.Done()
	}
}
