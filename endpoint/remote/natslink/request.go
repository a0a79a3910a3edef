package natslink

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// request is a request to JetStream that a client may make.
type request struct {
	body     []byte // encoded again, so that the server reads what was checked
	expected expected
	changes  bool // it changes a stream

	stream, consumer string // of a request for a consumer
	verb             string // of that request
	create           createRequest
}

// check returns a request to JetStream, or an error if it exceeds the scopes of the client. The account has checked the
// stream.
func (c *clientAccount) check(operation string, body []byte) (request, error) {
	words := strings.SplitN(operation, ".", 4)
	name := strings.Join(words[:min(2, len(words))], ".")
	switch {
	case name == "DIRECT.GET" && len(words) == 3:
		return c.checkRead(words[2], body)
	case name == "DIRECT.GET" && len(words) == 4:
		return c.checkReadSubject(words[2], words[3])
	case name == "STREAM.MSG" && len(words) == 4 && words[2] == "GET":
		return c.checkRead(words[3], body)
	case name == "STREAM.INFO" && len(words) == 3:
		return c.checkInfo(words[2], body)
	case name == "STREAM.PURGE" && len(words) == 3:
		return c.checkPurge(words[2], body)
	case name == "CONSUMER.CREATE" && len(words) == 4:
		return c.checkConsumer(words[2], words[3], body)
	case name == "CONSUMER.INFO" && len(words) == 4 && c.sharesConsumer(words[2], words[3]):
		return request{expected: expected{answers: 1}}, nil // the server knows whether it exists
	case (name == "CONSUMER.INFO" || name == "CONSUMER.DELETE") && len(words) == 4:
		return request{expected: expected{answers: 1}, stream: words[2], consumer: words[3], verb: words[1]}, nil
	case name == "CONSUMER.MSG" && len(words) == 4 && words[2] == "NEXT":
		return request{verb: "MSG", consumer: "-"}, nil // not from a consumer of the client: those do not reach the gate
	}
	return request{}, fmt.Errorf("the request %s is not allowed", operation)
}

// decode reads the body of a request, which may be empty. Unknown fields are errors, because the server may select
// messages with them.
func decode(body []byte, into any) error {
	if len(body) == 0 {
		return nil
	}
	fields := json.NewDecoder(bytes.NewReader(body))
	fields.DisallowUnknownFields()
	if err := fields.Decode(into); err != nil {
		return err
	}
	if _, err := fields.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// encoded returns a request with the fields of a body.
func encoded(in any, want expected) (request, error) {
	body, err := json.Marshal(in)
	return request{body: body, expected: want}, err
}

// checkRead admits reading of messages on subjects of the client's scopes.
func (c *clientAccount) checkRead(stream string, body []byte) (request, error) {
	var in struct {
		Last     string     `json:"last_by_subj,omitempty"`
		Next     string     `json:"next_by_subj,omitempty"`
		Several  []string   `json:"multi_last,omitempty"`
		Sequence uint64     `json:"seq,omitempty"` // of the first message
		Batch    int        `json:"batch,omitempty"`
		MaxBytes int        `json:"max_bytes,omitempty"`
		UpTo     uint64     `json:"up_to_seq,omitempty"`
		UpToTime *time.Time `json:"up_to_time,omitempty"`
	}
	if err := decode(body, &in); err != nil {
		return request{}, fmt.Errorf("a request to read: %w", err)
	}
	subjects := in.Several
	if one := cmp.Or(in.Last, in.Next); one != "" || len(subjects) == 0 { // the server refuses a request with both
		subjects = append(slices.Clone(subjects), cmp.Or(one, everything))
	}
	if in.Last != "" && in.Next != "" {
		return request{}, errors.New("a request to read names one subject")
	}
	allowed := c.readable(stream)
	for _, subject := range subjects {
		if !covers(allowed, subject) {
			return request{}, fmt.Errorf("the client may read %v of stream %s, not %q", allowed, stream, subject)
		}
	}
	answers := 1
	if in.Batch > 0 || len(in.Several) > 0 {
		answers = math.MaxInt
	}
	return encoded(in, expected{answers: answers})
}

// checkReadSubject admits reading of the newest message of a subject of the client's scopes. The server takes a wildcard in
// it for a pattern.
func (c *clientAccount) checkReadSubject(stream, subject string) (request, error) {
	allowed := c.readable(stream)
	for _, s := range c.scopes { // a writer looks for the description of a body by its name
		if s.Write && s.bucket() != "" && s.bodies() == stream {
			allowed = append(allowed, "$O."+s.bucket()+".M.*")
		}
	}
	if wild(subject) && !slices.Contains(allowed, everything) || !covers(allowed, subject) {
		return request{}, fmt.Errorf("the client may read %v of stream %s, not %q", allowed, stream, subject)
	}
	return request{expected: expected{answers: 1}}, nil
}

// wild reports whether a subject is a pattern.
func wild(subject string) bool {
	return slices.ContainsFunc(strings.Split(subject, "."), func(word string) bool { return word == "*" || word == everything })
}

// checkInfo admits the state of a stream, with the subjects that the client may read.
func (c *clientAccount) checkInfo(stream string, body []byte) (request, error) {
	var in struct {
		Subjects string `json:"subjects_filter,omitempty"`
		Deleted  bool   `json:"deleted_details,omitempty"`
		Offset   int    `json:"offset,omitempty"`
	}
	if err := decode(body, &in); err != nil {
		return request{}, fmt.Errorf("a request for the state of a stream: %w", err)
	}
	if allowed := c.readable(stream); in.Subjects != "" && !covers(allowed, in.Subjects) {
		return request{}, fmt.Errorf("the client may list %v of stream %s, not %q", allowed, stream, in.Subjects)
	} else if in.Deleted && !slices.Contains(allowed, everything) {
		return request{}, fmt.Errorf("the client may not list the deleted messages of stream %s", stream)
	}
	return encoded(in, expected{answers: 1})
}

// maxIdleConsumer is the time without a pull after which the server removes a consumer.
const maxIdleConsumer = 5 * time.Minute

// consumerConfig has the settings that clients with scopes may use. The others deliver elsewhere, publish advisories, or
// keep the consumer for ever.
type consumerConfig struct {
	Durable       string            `json:"durable_name,omitempty"`
	Name          string            `json:"name,omitempty"`
	Description   string            `json:"description,omitempty"`
	DeliverPolicy json.RawMessage   `json:"deliver_policy,omitempty"`
	StartSequence uint64            `json:"opt_start_seq,omitempty"`
	StartTime     *time.Time        `json:"opt_start_time,omitempty"`
	AckPolicy     json.RawMessage   `json:"ack_policy,omitempty"`
	AckWait       time.Duration     `json:"ack_wait,omitempty"`
	MaxDeliver    int               `json:"max_deliver,omitempty"`
	Filter        string            `json:"filter_subject,omitempty"`
	Filters       []string          `json:"filter_subjects,omitempty"`
	ReplayPolicy  json.RawMessage   `json:"replay_policy,omitempty"`
	MaxWaiting    int               `json:"max_waiting,omitempty"`
	MaxAckPending int               `json:"max_ack_pending,omitempty"`
	HeadersOnly   bool              `json:"headers_only,omitempty"`
	MaxBatch      int               `json:"max_batch,omitempty"`
	MaxExpires    time.Duration     `json:"max_expires,omitempty"`
	MaxBytes      int               `json:"max_bytes,omitempty"`
	Inactive      time.Duration     `json:"inactive_threshold,omitempty"`
	Replicas      int               `json:"num_replicas"`
	Memory        bool              `json:"mem_storage,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	Deliver       string            `json:"deliver_subject,omitempty"` // refused
	FlowControl   bool              `json:"flow_control,omitempty"`    // of push consumers
	Heartbeat     time.Duration     `json:"idle_heartbeat,omitempty"`  // of push consumers
}

// createRequest creates a consumer.
type createRequest struct {
	Stream string         `json:"stream_name"`
	Config consumerConfig `json:"config"`
	Action string         `json:"action,omitempty"`
}

// checkConsumer admits pull consumers for subjects of the client's scopes. The server would send the messages of a push
// consumer to any subject.
func (c *clientAccount) checkConsumer(stream, rest string, body []byte) (request, error) {
	name, filterInSubject, _ := strings.Cut(rest, ".")
	var in createRequest
	if err := decode(body, &in); err != nil {
		return request{}, fmt.Errorf("a consumer: %w", err)
	}
	config := &in.Config
	shared := c.sharesConsumer(stream, name)
	filters := config.Filters
	if config.Filter != "" || len(filters) == 0 {
		filters = append(slices.Clone(filters), cmp.Or(config.Filter, everything))
	}
	if filterInSubject != "" {
		filters = append(filters, filterInSubject)
	}
	switch {
	case config.Deliver != "": // readers of bodies then request their pieces
		return request{}, fmt.Errorf("a client with scopes may only create pull consumers, not one that delivers to %q", config.Deliver)
	case in.Stream != stream || config.Name != "" && config.Name != name || config.Durable != "" && config.Durable != name:
		return request{}, errors.New("the name of a consumer or its stream is not that of the request")
	case config.Durable != "" && !shared:
		return request{}, fmt.Errorf("a client with scopes may not create the durable consumer %q", config.Durable)
	case config.Inactive > maxIdleConsumer:
		return request{}, fmt.Errorf("a consumer of a client with scopes ends after at most %v without a pull, not %v", maxIdleConsumer, config.Inactive)
	case in.Action != "" && in.Action != "create" && in.Action != "update":
		return request{}, fmt.Errorf("the action %q is unknown", in.Action)
	}
	allowed := c.readable(stream)
	for _, filter := range filters {
		if !covers(allowed, cmp.Or(filter, everything)) {
			return request{}, fmt.Errorf("the client may read %v of stream %s, not %q", allowed, stream, filter)
		}
	}
	out := request{expected: expected{answers: 1}}
	if !shared {
		config.Metadata = map[string]string{consumerOwner: c.identity}
		out.stream, out.consumer, out.verb, out.create = stream, name, "CREATE", in
	}
	var err error
	out.body, err = json.Marshal(in)
	return out, err
}

// sharesConsumer reports whether the consumer is the one that all takers of a queue share, and the client is one of them.
func (c *clientAccount) sharesConsumer(stream, name string) bool {
	return name == pullers && slices.ContainsFunc(c.scopes, func(s scope) bool {
		return s.Kind == rights.QueueItems && s.stream() == stream && s.Write && !s.AddOnly
	})
}

// readable returns the subjects of a stream that the client may read.
func (c *clientAccount) readable(stream string) (subjects []string) {
	for _, s := range c.scopes {
		switch {
		case s.AddOnly:
		case s.Rest == everything && (s.stream() == stream || s.bodies() == stream):
			return []string{everything}
		case s.stream() == stream && s.Rest != everything:
			subjects = append(subjects, s.subjects(), "bin-take."+s.Namespace+"."+s.Rest, "*."+s.Namespace+"."+s.Rest)
		}
	}
	return subjects
}

// checkPurge admits purges of subjects of the client's scopes, and of single bodies.
func (c *clientAccount) checkPurge(stream string, body []byte) (request, error) {
	var in struct {
		Filter   string `json:"filter,omitempty"`
		Sequence uint64 `json:"seq,omitempty"`
		Keep     uint64 `json:"keep,omitempty"`
	}
	if err := decode(body, &in); err != nil {
		return request{}, fmt.Errorf("a purge: %w", err)
	}
	filter := cmp.Or(in.Filter, everything)
	for _, s := range c.scopes {
		own := s.stream() == stream && !s.AddOnly && covers([]string{s.subjects(), "bin-take." + s.Namespace + "." + s.Rest}, filter)
		if s.Write && (own || s.bodies() == stream && !wild(filter) || (s.bodies() == stream || s.stream() == stream) && s.Rest == everything && !s.AddOnly) {
			out, err := encoded(in, expected{answers: 1})
			out.changes = true
			return out, err
		}
	}
	return request{}, fmt.Errorf("the client may not remove %q from stream %s", filter, stream)
}
