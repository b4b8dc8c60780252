// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Why a launch ended for good. The reason decides for how long and how widely
// the offering is avoided.
const (
	ReasonInvalidIntent        = "InvalidLaunchIntent"
	ReasonVMIDTaken            = "VMIDTaken"
	ReasonTemplate             = "TemplateUnusable"
	ReasonClone                = "CloneFailed"
	ReasonStorageFull          = "StorageFull"
	ReasonBootData             = "BootDataFailed"
	ReasonPermission           = "PermissionMissing"
	ReasonRefused              = "ProxmoxRefused"
	ReasonStart                = "StartFailed"
	ReasonStaleLock            = "StaleLock"
	ReasonTimeout              = "LaunchTimeout"
	ReasonInsufficientCapacity = "InsufficientCapacity"
	// ReasonAddressTaken says that somebody else turned up with the VM's address.
	ReasonAddressTaken = "AddressTaken"
	ReasonSlowClone    = "CloneTooSlow"
)

// LaunchError ends a launch: this VM will never be, and trying again would not
// help.
type LaunchError struct {
	Reason string
	err    error
}

func (e *LaunchError) Error() string { return e.err.Error() }
func (e *LaunchError) Unwrap() error { return e.err }

// isTransient tells whether the same step may well succeed in a moment.
func isTransient(err error) bool {
	for _, kind := range []error{
		proxmox.ErrLocked, proxmox.ErrBusy, proxmox.ErrUnknownOutcome, proxmox.ErrConflict,
		proxmox.ErrHostUnreachable, proxmox.ErrUnreachable, proxmox.ErrNoQuorum, proxmox.ErrUnauthorized,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// judge turns a step's error into the launch's: final, or to be tried again
// while there is patience left.
func (l *launch) judge(err error) error {
	if _, final := errors.AsType[*LaunchError](err); final || errors.Is(err, ErrNewerVersion) {
		return err
	}
	if isTransient(err) || !isProxmox(err) {
		if l.Clock.Since(l.memory.troubled(string(l.claim.UID), l.Clock.Now())) < l.Settings.LaunchRetryTimeout {
			return err
		}
		return &LaunchError{Reason: ReasonTimeout, err: err}
	}
	if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); forbidden {
		return &LaunchError{Reason: ReasonPermission, err: err}
	}
	if errors.Is(err, proxmox.ErrStorageFull) {
		return &LaunchError{Reason: ReasonStorageFull, err: err}
	}
	return &LaunchError{Reason: ReasonRefused, err: err}
}

// isProxmox tells whether Proxmox said no, as opposed to the Kubernetes API.
func isProxmox(err error) bool {
	var forbidden *proxmox.ForbiddenError
	var invalid *proxmox.InvalidError
	if errors.As(err, &forbidden) || errors.As(err, &invalid) {
		return true
	}
	for _, kind := range []error{
		proxmox.ErrNotFound, proxmox.ErrExists, proxmox.ErrRunning, proxmox.ErrNotRunning, proxmox.ErrProtected, proxmox.ErrRootOnly,
		proxmox.ErrStorageFull, proxmox.ErrTaskCanceled, proxmox.ErrFailed,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// causeFromLog picks the line of a failed start that a person can act on.
func causeFromLog(lines []string) string {
	var said []string
	for _, line := range lines {
		line = strings.TrimSpace(line)
		switch {
		case line == "", strings.HasPrefix(line, "TASK "), strings.HasPrefix(line, "trying to acquire lock"), line == "OK":
		case strings.HasPrefix(line, "kvm: ") && strings.Contains(line, "warning"):
		default:
			said = append(said, strings.TrimPrefix(line, "kvm: "))
		}
	}
	for i, line := range said {
		if strings.HasPrefix(line, "start failed: QEMU exited") {
			said = append(said[:i], said[i+1:]...)
			break
		}
	}
	if len(said) == 0 {
		return ""
	}
	// The first complaint is the cause, what follows are its consequences.
	return said[0]
}
