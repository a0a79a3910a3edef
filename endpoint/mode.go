package endpoint

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// The environment variables that [Open] reads, beside [EnvBasePath]. What a program sets itself goes before all of
// them.
const (
	// EnvEnabled turns sharing on: "1", "true", "yes" or "on". Anything else is off.
	EnvEnabled = "SHARED_TENSOR_ENABLED"
	// EnvRole is the role where sharing is on: "server", "client" or "local"; client where it is not set.
	EnvRole = "SHARED_TENSOR_ROLE"
	// EnvLocalRank and EnvRank number the processes of a job, and so the sockets: each has an owner of its own.
	// Launchers set them; the first that is set counts.
	EnvLocalRank = "LOCAL_RANK"
	EnvRank      = "RANK"
	// EnvLogLevel is from which level on a node logs to standard error: "debug", "info", "warning", "error" or
	// "critical".
	EnvLogLevel = "SHARED_TENSOR_LOG_LEVEL"
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

// UnmarshalText reads what MarshalText writes, as [ParseMode] does.
func (m *Mode) UnmarshalText(text []byte) (err error) {
	*m, err = ParseMode(string(text))
	return err
}

// ParseMode reads what String writes, in any case and with blanks around it. Errors are [ErrConfiguration].
func ParseMode(s string) (Mode, error) {
	for m := ModeAuto; m <= ModeClient; m++ {
		if strings.EqualFold(strings.TrimSpace(s), m.String()) {
			return m, nil
		}
	}
	return 0, status.Configuration(fmt.Errorf("%w: mode %q: it must be auto, local, server or client", status.ErrInvalid, s))
}

// resolve makes a role of a mode, by the environment where it is ModeAuto. A role that is misspelt is an error: taking
// it for another one would look like a server that is not there.
func (m Mode) resolve() (Mode, error) {
	switch {
	case m > ModeClient:
		return 0, status.Configuration(fmt.Errorf("%w: there is no mode %d", status.ErrInvalid, uint8(m)))
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
		return 0, status.Configuration(fmt.Errorf("%w: %s is %q: it must be server, client or local", status.ErrInvalid, EnvRole, role))
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

// deviceIndex is the number in the path of a socket: what the program says, else the rank of the process, else the
// number of its first device.
func deviceIndex(explicit int, devices []driver.Device) (int, error) {
	if explicit != 0 {
		return explicit, nil
	}
	for _, name := range []string{EnvLocalRank, EnvRank} {
		text := strings.TrimSpace(os.Getenv(name))
		if text == "" {
			continue
		}
		rank, err := strconv.Atoi(text)
		if err != nil || rank < 0 {
			return 0, status.Configuration(fmt.Errorf("%w: %s is %q: it must be a number, 0 or more", status.ErrInvalid, name, text))
		}
		return rank, nil
	}
	if len(devices) > 0 {
		return max(devices[0].Info().Index, 0), nil
	}
	return 0, nil
}

// defaultLogger is what a node logs to that was given no logger; nil where the environment says nothing.
func defaultLogger() (*slog.Logger, error) {
	text := strings.TrimSpace(os.Getenv(EnvLogLevel))
	var level slog.Level
	switch strings.ToLower(text) {
	case "":
		return nil, nil
	case "warning":
		level = slog.LevelWarn
	case "critical":
		level = slog.LevelError + 4
	default:
		if err := level.UnmarshalText([]byte(text)); err != nil {
			return nil, status.Configuration(fmt.Errorf("%w: %s is %q: it must be debug, info, warning, error or critical", status.ErrInvalid, EnvLogLevel, text))
		}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
}
