package endpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// LoadState says how a version stands that an owner is going to publish.
type LoadState string

// The states of loading.
const (
	// LoadWaiting is a version that waits for those before it.
	LoadWaiting LoadState = "waiting"
	// LoadRunning is a version whose bytes are being loaded.
	LoadRunning LoadState = "loading"
	// LoadFailed is a version that could not be loaded. It is listed until its name is loaded again or published.
	LoadFailed LoadState = "failed"
)

// LoadInfo describes a version that an owner is going to publish, at one moment.
type LoadInfo struct {
	// State says how it stands.
	State LoadState `json:"state"`
	// Done and Total are bytes. Total is 0 before it is known.
	Done  int64 `json:"done_bytes"`
	Total int64 `json:"total_bytes"`
	// StartedAt is when the first byte was asked for; zero before.
	StartedAt time.Time `json:"started_at,omitzero"`
	// UpdatedAt is when Done was counted, or when it failed; zero before it began.
	UpdatedAt time.Time `json:"updated_at,omitzero"`
	// Source is where the tensors come from, for people; it may be empty.
	Source string `json:"source,omitempty"`
	// Error is why it failed, in a sentence.
	Error string `json:"error,omitempty"`

	err error
}

// Err is why it failed, answering errors.Is as the owner's error does; nil in other states.
func (l *LoadInfo) Err() error { return l.err }

// UnmarshalJSON reads what the JSON of a LoadInfo says. Err has the text alone.
func (l *LoadInfo) UnmarshalJSON(data []byte) error {
	type plain LoadInfo
	if err := json.Unmarshal(data, (*plain)(l)); err != nil {
		return err
	}
	if l.err = nil; l.Error != "" {
		l.err = errors.New(l.Error)
	}
	return nil
}

// BytesPerSecond is how fast it has been loaded so far; 0 where that cannot be said.
func (l *LoadInfo) BytesPerSecond() float64 {
	seconds := l.UpdatedAt.Sub(l.StartedAt).Seconds()
	if l.StartedAt.IsZero() || seconds <= 0 || l.Done <= 0 {
		return 0
	}
	return float64(l.Done) / seconds
}

// decodeLoading is what a client makes of a load; nil of nil.
func decodeLoading(in *message.Loading) *LoadInfo {
	if in == nil {
		return nil
	}
	out := &LoadInfo{
		State: LoadRunning, Done: clampBytes(in.Done), Total: clampBytes(in.Total), StartedAt: loadTime(in.StartedAt), UpdatedAt: loadTime(in.UpdatedAt),
		Source: in.Source,
	}
	switch in.State {
	case message.LoadWaiting:
		out.State = LoadWaiting
	case message.LoadFailed:
		out.State = LoadFailed
		if in.Error != nil {
			out.err = status.DecodeError(in.Error)
			out.Error = out.err.Error()
		}
	}
	return out
}

// loadTime is a time on the wire, zero for 0.
func loadTime(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

// clampBytes is a peer's number of bytes, as far as an int64 goes.
func clampBytes(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// decodeList is what a client makes of a list: the names that are published and those that are only loaded, in order.
func decodeList(in *message.Listed) []ModelInfo {
	list := make([]ModelInfo, 0, len(in.Models)+len(in.Loading))
	at := map[string]int{}
	for _, m := range in.Models {
		at[m.Name] = len(list)
		list = append(list, decodeInfo(m))
	}
	for i := range in.Loading {
		name := in.Loading[i].Name
		index, known := at[name]
		if !known {
			index = len(list)
			at[name] = index
			list = append(list, ModelInfo{Name: name, Versions: []VersionInfo{}})
		}
		list[index].Loading = decodeLoading(&in.Loading[i])
	}
	if len(in.Loading) > 0 {
		slices.SortStableFunc(list, func(a, b ModelInfo) int { return cmp.Compare(a.Name, b.Name) })
	}
	return list
}
