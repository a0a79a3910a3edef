package natslink

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// identitySeparator separates the message id that a client chose from the identity that the gate adds.
const identitySeparator = "~"

// MessageID returns the id that the writer of a message chose. For clients with scopes, the gate adds their identity to
// the stored id, because the server otherwise takes another client's message with the same id for a duplicate.
func MessageID(header nats.Header) string {
	id := header.Get(jetstream.MsgIDHeader)
	if at := strings.LastIndex(id, identitySeparator); at >= 0 && len(id)-at-1 == identityLength && strings.Trim(id[at+1:], "0123456789abcdef") == "" {
		return id[:at]
	}
	return id
}

// form is a kind of subject to which clients with scopes publish.
type form string

const (
	formItem   form = "bin"         // an item of a bin
	formProbe  form = "probe"       // an empty message that finds out whether an id was stored
	formClaim  form = "bin-take"    // a claim on items of a bin
	formQueue  form = "queue"       // an item of a queue
	formValue  form = "value"       // a value of a bucket
	formPiece  form = "piece"       // a piece of a body
	formObject form = "description" // the description of a body
)

// serverHeaders is the prefix of the headers that the server executes.
const serverHeaders = "Nats-"

// executed lists the headers of the server that each form needs. The gate refuses all others: they remove messages of
// other subjects, schedule messages, count, or reveal what other subjects contain.
var executed = map[form][]string{
	formItem:   {jetstream.MsgIDHeader, jetstream.MsgRollup, jetstream.ExpectedLastSubjSeqHeader},
	formProbe:  {jetstream.MsgIDHeader, jetstream.MsgTTLHeader},
	formClaim:  {jetstream.MsgIDHeader, jetstream.MsgRollup, jetstream.ExpectedLastSubjSeqHeader, jetstream.MsgTTLHeader},
	formQueue:  {jetstream.MsgIDHeader, jetstream.ExpectedLastSubjSeqHeader},
	formValue:  {jetstream.MsgIDHeader, jetstream.MsgRollup, jetstream.ExpectedLastSubjSeqHeader, jetstream.MsgTTLHeader},
	formPiece:  {jetstream.MsgIDHeader},
	formObject: {jetstream.MsgIDHeader, jetstream.MsgRollup},
}

// formOf returns the form of a subject. It is empty for subjects that clients with scopes do not publish to.
func formOf(subject string) form {
	words := strings.Split(subject, ".")
	switch {
	case words[0] == "bin" && len(words) == 3 && words[2] == "%":
		return formProbe
	case words[0] == "bin-take" && len(words) == 3 && words[2] == "%":
		return formProbe
	case len(words) < 3:
		return ""
	case words[0] == "$KV":
		return formValue
	case words[0] == "$O" && words[2] == "C":
		return formPiece
	case words[0] == "$O" && words[2] == "M":
		return formObject
	case words[0] == "bin", words[0] == "bin-take", words[0] == "queue":
		return form(words[0])
	}
	return ""
}

// checkPublication returns the headers with which a client's message may be stored.
func (c *clientAccount) checkPublication(subject string, msg *nats.Msg) (nats.Header, error) {
	if strings.ContainsAny(subject, "*> \t\r\n") {
		return nil, fmt.Errorf("a subject to publish to has no wildcard: %q", subject)
	}
	kind := formOf(subject)
	if kind == "" || !covers(c.published, subject) {
		return nil, fmt.Errorf("the client may not publish to %s", subject)
	}
	out := make(nats.Header, len(msg.Header))
	for name, values := range msg.Header {
		if name == server.ClientInfoHdr {
			continue // the server adds it to what an account sends to another one
		}
		if strings.Trim(name, headerLetters) != "" || len(values) != 1 || strings.ContainsAny(values[0], "\r\n\x00") {
			return nil, fmt.Errorf("the header %q of a message to %s has a name with other characters than letters, digits, '-' and '_', or more than one line", name, subject)
		}
		value := values[0]
		if len(name) >= len(serverHeaders) && strings.EqualFold(name[:len(serverHeaders)], serverHeaders) {
			if !slices.Contains(executed[kind], name) {
				return nil, fmt.Errorf("the client may not use the header %s in a message to %s", name, subject)
			}
			switch name {
			case jetstream.MsgRollup:
				if value != jetstream.MsgRollupSubject {
					return nil, fmt.Errorf("the client may only replace the messages of one subject (%s: %s), not %q", name, jetstream.MsgRollupSubject, value)
				}
			case jetstream.MsgIDHeader:
				value += identitySeparator + c.identity
			}
		}
		out[name] = []string{value}
	}
	if kind == formProbe && (len(msg.Data) > 0 || out.Get(jetstream.MsgTTLHeader) != probeTTL || out.Get(jetstream.MsgIDHeader) == "") {
		return nil, fmt.Errorf("a message to %s is empty and has an id and a time to live of %s", subject, probeTTL)
	}
	return out, nil
}

const (
	headerLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	// probeTTL is the time to live of probes in package bins.
	probeTTL = "1s"
)
