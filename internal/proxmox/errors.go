// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// What went wrong, as far as a caller's next step depends on it. Every error of
// this package wraps exactly one of these, or is a *ForbiddenError or
// *InvalidError; the text keeps Proxmox's own words.
var (
	// ErrNotFound: proof that what the call named (the guest of a VM call, the
	// storage of a storage call, the task) is not there. Something else that is
	// missing on the way, such as a bridge, is ErrFailed.
	ErrNotFound = errors.New("not found")
	// ErrExists: the VMID is taken.
	ErrExists = errors.New("already exists")
	// ErrLocked: a config or storage lock is held by somebody; try again later.
	ErrLocked = errors.New("locked")
	// ErrBusy: nothing was started ("got no worker upid"); try again.
	ErrBusy = errors.New("busy")
	// ErrRunning: the operation wants a stopped VM.
	ErrRunning = errors.New("running")
	// ErrNotRunning: the operation wants a running VM.
	ErrNotRunning = errors.New("not running")
	// ErrProtected: the VM's protection flag forbids it.
	ErrProtected = errors.New("protected")
	// ErrRootOnly: Proxmox reserves that option for a root@pam login.
	ErrRootOnly = errors.New("reserved for a root@pam login")
	// ErrStorageFull: no space left for a volume.
	ErrStorageFull = errors.New("storage full")
	// ErrConflict: the configuration changed since it was read.
	ErrConflict = errors.New("changed meanwhile")
	// ErrNoQuorum: the Cluster takes no writes now.
	ErrNoQuorum = errors.New("no quorum")
	// ErrUnauthorized: credentials refused.
	ErrUnauthorized = errors.New("credentials refused")
	// ErrHostUnreachable: the Host does not answer; nothing was done.
	ErrHostUnreachable = errors.New("host unreachable")
	// ErrUnreachable: no URL of the Cluster answers; nothing was done.
	ErrUnreachable = errors.New("cluster unreachable")
	// ErrUnknownOutcome: the request may or may not have taken effect: look, do not repeat.
	ErrUnknownOutcome = errors.New("outcome unknown")
	// ErrTaskCancelled: somebody ended the task.
	ErrTaskCancelled = errors.New("task cancelled")
	// ErrFailed: anything else; the text is Proxmox's.
	ErrFailed = errors.New("failed")
)

// ForbiddenError names the privilege that the caller lacks.
type ForbiddenError struct {
	Path      string // /vms/100; empty where Proxmox does not say
	Privilege string // VM.Clone; alternatives are separated by "|"
	Message   string // Proxmox's own words
}

func (e *ForbiddenError) Error() string {
	if e.Path == "" {
		return "forbidden: " + e.Message
	}
	return fmt.Sprintf("forbidden: privilege %s is missing on %s (%s)", e.Privilege, e.Path, e.Message)
}

// InvalidError names the parameters that Proxmox refused.
type InvalidError struct {
	Parameters map[string]string
	Message    string
}

func (e *InvalidError) Error() string {
	if len(e.Parameters) == 0 {
		return "refused: " + e.Message
	}
	parts := make([]string, 0, len(e.Parameters))
	for _, name := range slices.Sorted(maps.Keys(e.Parameters)) {
		parts = append(parts, name+": "+e.Parameters[name])
	}
	return "refused: " + strings.Join(parts, "; ")
}

// failure is one of the kinds above with the words that came along and, where
// the network failed, what it said.
type failure struct {
	kind  error
	text  string
	cause error
}

func (e *failure) Error() string {
	switch {
	case e.text != "":
		return e.kind.Error() + ": " + e.text
	case e.cause != nil:
		return e.kind.Error() + ": " + oneLine(e.cause.Error())
	}
	return e.kind.Error()
}

func (e *failure) Unwrap() []error {
	if e.cause == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.cause}
}

// typed finds the error of this package in what go-proxmox and net/http wrapped
// around it, nil where there is none; their wrapping repeats the URL and says
// nothing new.
func typed(err error) error {
	var (
		failed    *failure
		forbidden *ForbiddenError
		invalid   *InvalidError
	)
	switch {
	case errors.As(err, &failed):
		return failed
	case errors.As(err, &forbidden):
		return forbidden
	case errors.As(err, &invalid):
		return invalid
	}
	return nil
}
