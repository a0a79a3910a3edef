package mirrorgate

import (
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
)

// Row is a mirror on the page.
type Row struct {
	Name string `json:"name"`
	// State is what it does, in a few words.
	State string `json:"state"`
	// Version is the newest at the owner here, of SourceVersion at the source: a number, or a revision.
	Version       uint64 `json:"version"`
	SourceVersion string `json:"source_version"`
	// Done of Total bytes are here of the version that comes, or of the one that is here, and BytesPerSecond is how fast
	// they come, or came.
	Done           int64 `json:"done"`
	Total          int64 `json:"total"`
	MovedBytes     int64 `json:"moved_bytes"`
	BytesPerSecond int64 `json:"bytes_per_second"`
	// From is who the bytes come from: the source, or another mirror.
	From   string `json:"from"`
	Source string `json:"source"`
	// PeerBytes is how many of MovedBytes other mirrors gave.
	PeerBytes int64  `json:"bytes_of_peers"`
	Problem   string `json:"problem"`
}

// row is a mirror as its events tell.
type row struct {
	name, source string

	mu    sync.Mutex
	state string
	shown Row
	at    time.Time // of the figure before
	moved int64
}

// get is the row now.
func (r *row) get() Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.shown
	out.Name, out.Source, out.State = r.name, r.source, r.state
	return out
}

// fail notes why the mirror does not go on.
func (r *row) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.shown.Problem, r.shown.BytesPerSecond = "trying again", err.Error(), 0
}

// note is told what the mirror does.
func (r *row) note(e mirror.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Kind {
	case mirror.EventFound:
		r.state, r.at, r.moved, r.shown.From, r.shown.Problem = "fetching", time.Now(), e.Moved, "the source", ""
		r.progress(e)
	case mirror.EventProgress:
		if e.From != "" {
			r.shown.From = e.From
		}
		if dt := time.Since(r.at); dt >= 500*time.Millisecond {
			r.shown.BytesPerSecond = int64(float64(e.Moved-r.moved) / dt.Seconds())
			r.at, r.moved = time.Now(), e.Moved
		}
		r.progress(e)
	case mirror.EventRetry:
		r.shown.Problem = e.Error
	case mirror.EventPublished, mirror.EventUnchanged:
		r.published(e.Result)
	}
}

func (r *row) progress(e mirror.Event) {
	r.shown.Done, r.shown.Total, r.shown.MovedBytes = e.Done, e.Total, e.Moved
}

// published notes a version that is there.
func (r *row) published(result *mirror.Result) {
	r.state, r.shown.Problem = "following", ""
	r.shown.Version, r.shown.Done, r.shown.Total = result.Version, result.Bytes, result.Bytes
	r.shown.MovedBytes, r.shown.PeerBytes = result.Moved, result.FromPeers
	r.shown.SourceVersion = result.Revision
	if result.Revision == "" {
		r.shown.SourceVersion = fmt.Sprint(result.SourceVersion)
	}
	if !result.Unchanged && result.Seconds > 0 {
		r.shown.BytesPerSecond = int64(float64(result.Moved) / result.Seconds)
	}
}
