package mirrorgate

import (
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
)

// Row is the status of a mirror on the page.
type Row struct {
	Name string `json:"name"`
	// State describes the mirror's activity in a few words.
	State string `json:"state"`
	// Version is the newest version at this host's owner. SourceVersion is the corresponding version at the source: a
	// number or a revision.
	Version       uint64 `json:"version"`
	SourceVersion string `json:"source_version"`
	// Done is the number of bytes in place, of Total, for the version that is being fetched or was fetched last.
	// BytesPerSecond is its transfer rate.
	Done           int64 `json:"done"`
	Total          int64 `json:"total"`
	MovedBytes     int64 `json:"moved_bytes"`
	BytesPerSecond int64 `json:"bytes_per_second"`
	// From is the source of the bytes: the model's source, or another mirror.
	From   string `json:"from"`
	Source string `json:"source"`
	// PeerBytes is the part of MovedBytes that other mirrors sent.
	PeerBytes int64  `json:"bytes_of_peers"`
	Problem   string `json:"problem"`
}

// row collects the status of a mirror from its events.
type row struct {
	name, source string

	mu    sync.Mutex
	state string
	shown Row
	at    time.Time // time of the previous rate
	moved int64
}

// get returns the current status.
func (r *row) get() Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.shown
	out.Name, out.Source, out.State = r.name, r.source, r.state
	return out
}

// fail records why the mirror stopped.
func (r *row) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.shown.Problem, r.shown.BytesPerSecond = "trying again", err.Error(), 0
}

// note processes an event of the mirror.
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

// published records a published version.
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
