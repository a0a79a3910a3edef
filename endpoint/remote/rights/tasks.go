package rights

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// maxLabelName is the maximum length of a name that is part of a label of tasks.
const maxLabelName = 128

// TaskLabel returns the label of the tasks that the identity submits, such as "token:alice". The owner keeps it, so all gateways of
// the owner derive the same label for the same client. A name that is long, or has other characters than printable ASCII, is
// replaced by a digest. The label is empty for the client of a gateway that requires no identity.
func (id Identity) TaskLabel() string {
	if !id.Known() || id.Method == MethodNone {
		return ""
	}
	if id.Name != "" && len(id.Name) <= maxLabelName && !strings.ContainsFunc(id.Name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return id.Method + ":" + id.Name
	}
	digest := sha256.Sum256([]byte(id.Key()))
	return id.Method + "#" + hex.EncodeToString(digest[:16])
}

// AllowTask returns nil if the identity may see and cancel a task with a label. A task without a label was not submitted by a
// client with an identity, such as one of a program on the host. It requires the right "control". A gateway that requires no
// identity has one client, which may use all tasks.
func (id Identity) AllowTask(task, label string) error {
	switch {
	case id.Method == MethodNone || label != "" && label == id.TaskLabel():
		return nil
	case label != "":
		return fmt.Errorf("%w: task %q was submitted by another client", ErrRight, task)
	}
	if err := id.AllowControl(); err != nil {
		return fmt.Errorf("task %q was not submitted by a client of a gateway: %w", task, err)
	}
	return nil
}
