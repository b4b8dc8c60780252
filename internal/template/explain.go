// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// passing tells whether the same step may well succeed in a moment.
func passing(err error) bool {
	for _, kind := range []error{
		errStillRunning, proxmox.ErrLocked, proxmox.ErrBusy, proxmox.ErrUnknownOutcome, proxmox.ErrConflict, proxmox.ErrHostUnreachable,
		proxmox.ErrUnreachable, proxmox.ErrNoQuorum, proxmox.ErrUnauthorized, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// stepError is a failure with what to do about it.
type stepError struct {
	text string
	err  error
}

func (e *stepError) Error() string { return e.text }
func (e *stepError) Unwrap() error { return e.err }

// explain says what failed in a step, on which storage or object, and what to do.
func explain(err error, place Location, step, storage string) error {
	if err == nil || errors.Is(err, errStillRunning) || errors.Is(err, errSuperseded) || errors.Is(err, context.Canceled) {
		return err
	}
	if _, explained := errors.AsType[*stepError](err); explained {
		return err
	}
	say := func(format string, args ...any) error {
		return &stepError{text: fmt.Sprintf(format, args...), err: err}
	}
	forbidden, isForbidden := errors.AsType[*proxmox.ForbiddenError](err)
	switch {
	case isForbidden && forbidden.Path != "":
		return say("%s: privilege %s is missing on %s; run: pveum acl modify %s --users <user of the token> --roles <a role with it>",
			step, forbidden.Privilege, forbidden.Path, forbidden.Path)
	case isForbidden && missingPool.MatchString(forbidden.Message):
		pool := missingPool.FindStringSubmatch(forbidden.Message)[1]
		return say("%s: spec.resourcePool %q does not exist; run: pveum pool add %s", step, pool, pool)
	case isForbidden:
		return say("%s: a privilege is missing (%s); docs/permissions.md lists what the token needs", step, forbidden.Message)
	case errors.Is(err, proxmox.ErrStorageFull):
		return say("%s: storage %s is full (%v); free space there, and look with: pvesm status --storage %s", step, storage, last(err), storage)
	case errors.Is(err, proxmox.ErrNoQuorum):
		return say("%s: the Proxmox cluster has no quorum and takes no changes; bring its hosts back, and look with: pvecm status", step)
	case errors.Is(err, proxmox.ErrHostUnreachable), errors.Is(err, proxmox.ErrUnreachable):
		return say("%s: host %s does not answer (%v)", step, place.Host, last(err))
	}
	return say("%s: %v", step, last(err))
}

// last is the end of a chain of wrapped words: what Proxmox said.
func last(err error) string {
	text := err.Error()
	if at := strings.LastIndex(text, ": "+kindOf(err)+": "); at >= 0 {
		text = text[at+2:]
	}
	return strings.TrimPrefix(text, proxmox.ErrFailed.Error()+": ")
}

func kindOf(err error) string {
	for _, kind := range []error{
		proxmox.ErrStorageFull, proxmox.ErrFailed, proxmox.ErrLocked, proxmox.ErrHostUnreachable, proxmox.ErrUnreachable, proxmox.ErrNoQuorum,
		proxmox.ErrExists, proxmox.ErrNotFound, proxmox.ErrUnknownOutcome, proxmox.ErrBusy, proxmox.ErrConflict, proxmox.ErrRootOnly,
	} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return "refused"
}

var (
	missingPool      = regexp.MustCompile(`pool '([^']*)' does not exist`)
	checksumMismatch = regexp.MustCompile(`checksum mismatch: got '([^']*)'`)
	httpError        = regexp.MustCompile(`ERROR (\d{3}: .*)\.$`)
)

// explainDownload reads a failed download's last word and its log, where the cause is.
func explainDownload(err error, log []string, w Desired, place Location) error {
	source := w.Spec.SourceImage
	say := func(format string, args ...any) error {
		return &stepError{text: fmt.Sprintf(format, args...), err: err}
	}
	if found := checksumMismatch.FindStringSubmatch(err.Error()); found != nil {
		return say("downloading the image: %s does not have spec.sourceImage.checksum, its %s is %s; correct the checksum or the url",
			source.URL, source.ChecksumType, found[1])
	}
	for _, line := range log {
		if found := httpError.FindStringSubmatch(line); found != nil {
			return say("downloading the image: the server answers %q for spec.sourceImage.url; correct it, and look with: curl -I %s", found[1], source.URL)
		}
		if strings.Contains(line, "No space left on device") {
			return say("downloading the image: storage %s is full; free space there, and look with: pvesm status --storage %s", place.Images, place.Images)
		}
	}
	if forbidden, ok := errors.AsType[*proxmox.ForbiddenError](err); ok && forbidden.Path == "" {
		return say("downloading the image: a privilege is missing, Datastore.AllocateTemplate on /storage/%s or Sys.AccessNetwork on /nodes/%s; run: pveum acl modify /nodes/%s --users <user of the token> --roles <a role with it>",
			place.Images, place.Host, place.Host)
	}
	return explain(err, place, "downloading the image", place.Images)
}
