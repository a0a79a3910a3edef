package endpoint

import (
	"fmt"
	"os"
	"strings"
)

// The environment variables by which [ModeAuto] finds its role. What a program sets itself goes before both.
const (
	// EnvEnabled turns sharing on: "1", "true", "yes" or "on". Anything else is off.
	EnvEnabled = "SHARED_TENSOR_ENABLED"
	// EnvRole is the role where sharing is on: "server", "client" or "local"; client where it is not set.
	EnvRole = "SHARED_TENSOR_ROLE"
)

// Mode is the role of a [Node].
type Mode uint8

const (
	// ModeAuto is local where [EnvEnabled] does not say otherwise, and else what [EnvRole] says.
	ModeAuto Mode = iota
	// ModeLocal runs functions in this process and serves nobody.
	ModeLocal
	// ModeServer runs functions in this process and serves other processes.
	ModeServer
	// ModeClient has functions run by an owner in another process.
	ModeClient
)

// String is the mode in one word.
func (m Mode) String() string {
	switch m {
	case ModeAuto:
		return "auto"
	case ModeLocal:
		return "local"
	case ModeServer:
		return "server"
	case ModeClient:
		return "client"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// MarshalText is String.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// ParseMode reads what String writes, in any case and with blanks around it. Errors are [ErrConfiguration].
func ParseMode(s string) (Mode, error) {
	for m := ModeAuto; m <= ModeClient; m++ {
		if strings.EqualFold(strings.TrimSpace(s), m.String()) {
			return m, nil
		}
	}
	return 0, configuration(fmt.Errorf("%w: mode %q: it must be auto, local, server or client", ErrInvalid, s))
}

// resolve makes a role of a mode, by the environment where it is ModeAuto. A role that is misspelt is an error: taking it for another one
// would look like a server that is not there.
func (m Mode) resolve() (Mode, error) {
	switch {
	case m > ModeClient:
		return 0, configuration(fmt.Errorf("%w: there is no mode %d", ErrInvalid, uint8(m)))
	case m != ModeAuto:
		return m, nil
	case !truthy(os.Getenv(EnvEnabled)):
		return ModeLocal, nil
	}
	role := os.Getenv(EnvRole)
	if strings.TrimSpace(role) == "" {
		return ModeClient, nil
	}
	m, err := ParseMode(role)
	if err != nil || m == ModeAuto {
		return 0, configuration(fmt.Errorf("%w: %s is %q: it must be server, client or local", ErrInvalid, EnvRole, role))
	}
	return m, nil
}

func truthy(s string) bool {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "1", "true", "yes", "on":
		return true
	}
	return false
}
