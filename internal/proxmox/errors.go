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

// Kinds of errors by the caller's next step. Every error of this package wraps
// exactly one of these, or is a *ForbiddenError or *InvalidError. Error texts contain
// Proxmox's own message.
var (
	// ErrNotFound: the object of the call (the guest of a VM call, the storage of a
	// storage call, the task) does not exist. If another object is missing, such as a
	// bridge, the error is ErrFailed.
	ErrNotFound = errors.New("not found")
	// ErrExists: the VMID is taken.
	ErrExists = errors.New("already exists")
	// ErrLocked: another task holds a config or storage lock. IsTransient names
	// where it is retried.
	ErrLocked = errors.New("locked")
	// ErrBusy: nothing was started ("got no worker upid"); retry.
	ErrBusy = errors.New("busy")
	// ErrRunning: the operation requires a stopped VM.
	ErrRunning = errors.New("running")
	// ErrNotRunning: the operation requires a running VM.
	ErrNotRunning = errors.New("not running")
	// ErrProtected: the VM's protection flag forbids it.
	ErrProtected = errors.New("protected")
	// ErrRootOnly: Proxmox reserves the option for a root@pam login.
	ErrRootOnly = errors.New("reserved for a root@pam login")
	// ErrStorageFull: no space left for a volume.
	ErrStorageFull = errors.New("storage full")
	// ErrConflict: the configuration changed since it was read.
	ErrConflict = errors.New("configuration was modified concurrently")
	// ErrNoQuorum: no Host that responds has quorum. It accepts no writes, and what it
	// lists is outdated.
	ErrNoQuorum = errors.New("no quorum")
	// ErrUnauthorized: Proxmox refused the credentials.
	ErrUnauthorized = errors.New("credentials refused")
	// ErrHostUnreachable: the Host does not respond; the request had no effect.
	ErrHostUnreachable = errors.New("host unreachable")
	// ErrUnreachable: no URL of the Cluster responds; the request had no effect.
	ErrUnreachable = errors.New("cluster unreachable")
	// ErrNoTime: the context of the caller ended before a URL had time to respond, for example
	// while the request waited for a connection; the request had no effect. It does not mean
	// that the Cluster is unreachable.
	ErrNoTime = errors.New("no time left")
	// ErrUnknownOutcome: the request may have taken effect; read the state before a retry.
	ErrUnknownOutcome = errors.New("outcome unknown")
	// ErrTaskCanceled: the task was canceled by another user.
	ErrTaskCanceled = errors.New("task canceled")
	// ErrFailed: any other error; the text is Proxmox's.
	ErrFailed = errors.New("failed")
)

// ForbiddenError is a missing privilege of the user.
type ForbiddenError struct {
	Path      string // /vms/100; empty if Proxmox does not name it
	Privilege string // VM.Clone; alternatives are separated by "|"
	Message   string // of Proxmox
}

func (e *ForbiddenError) Error() string {
	if e.Path == "" {
		return "forbidden: " + e.Message
	}
	return fmt.Sprintf("forbidden: privilege %s is missing on %s (%s)", e.Privilege, e.Path, e.Message)
}

// InvalidError are the parameters that Proxmox refused.
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

// failure is one of the kinds above with Proxmox's message, or with the cause if the
// network failed.
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

// typed returns the error of this package in a chain of wrapped errors, or nil if
// there is none.
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
