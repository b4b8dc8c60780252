// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
)

// IsTransient reports whether the same request may succeed when it is retried.
func IsTransient(err error) bool {
	for _, transient := range []error{
		ErrLocked, ErrBusy, ErrUnknownOutcome, ErrConflict,
		ErrHostUnreachable, ErrUnreachable, ErrNoQuorum, ErrUnauthorized,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, transient) {
			return true
		}
	}
	return false
}
