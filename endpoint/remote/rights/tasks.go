package rights

import "fmt"

// AllowTask returns nil if the identity may see and cancel a task. owner is the key of the identity that submitted it through a
// gateway, or empty if the gateway has no record of it, such as for a task of a program on the host. Such a task requires the right
// "control". A gateway that requires no identity has one client.
func (id Identity) AllowTask(task, owner string) error {
	switch {
	case id.Method == MethodNone || owner == id.Key():
		return nil
	case owner != "":
		return fmt.Errorf("%w: task %q was submitted by another client", ErrRight, task)
	}
	if err := id.AllowControl(); err != nil {
		return fmt.Errorf("task %q was not submitted through this gateway: %w", task, err)
	}
	return nil
}
