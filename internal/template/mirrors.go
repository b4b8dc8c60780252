// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// mirror is a URL of an image.
type mirror struct {
	// name is the field below spec.sourceImage: url, urls[0] or talos.
	name, url string
	// base is the last part of the URL. redacted is the URL without a password.
	base, redacted string
}

func (m mirror) field() string { return "spec.sourceImage." + m.name }

// newMirrors returns the URLs that an image is downloaded from. It fails if one of them
// cannot be used.
func newMirrors(source v1alpha1.SourceImage) ([]mirror, error) {
	var mirrors []mirror
	for n, location := range source.DownloadURLs() {
		m := mirror{name: "url", url: location}
		switch {
		case source.Talos != nil:
			m.name = "talos"
		case source.URL == "":
			m.name = fmt.Sprintf("urls[%d]", n)
		}
		parsed, err := url.Parse(location)
		if err != nil {
			return nil, fmt.Errorf("%s is not a URL: %w", m.field(), err)
		}
		m.base, m.redacted = path.Base(parsed.Path), parsed.Redacted()
		if extension := extensionOf(m.base); slices.Contains(archives, extension) {
			return nil, fmt.Errorf("%s ends in .%s: Proxmox decompresses ISO images only; use an image that is not compressed, or decompress it and serve it from your own web server, or upload it to the hosts and set volume", m.field(), extension)
		}
		if source.ChecksumURL != "" && len(mirrors) > 0 && mirrors[0].base != m.base {
			return nil, fmt.Errorf("%s ends in %q, and %s in %q: with checksumURL, all URLs must end in the file name that it lists", mirrors[0].field(), mirrors[0].base, m.field(), m.base)
		}
		mirrors = append(mirrors, m)
	}
	if len(mirrors) == 0 {
		return nil, errors.New("spec.sourceImage has no image: set url, urls, talos or volume")
	}
	return mirrors, nil
}

// contentLocation returns what identifies the content of an image besides its checksum.
// With a checksum, the same content is expected from all mirrors.
func contentLocation(source v1alpha1.SourceImage) string {
	switch {
	case source.Talos != nil:
		return strings.Join([]string{"talos", source.Talos.Schematic, source.Talos.Version, source.Talos.Arch}, "/")
	case source.URL != "":
		return source.URL
	case source.Checksum != "":
		return ""
	}
	return strings.Join(slices.Sorted(slices.Values(source.URLs)), "\n")
}

// download downloads an image from the first mirror that works. running is the task of a
// download that an earlier run started, or "".
func (r *hostReconciler) download(ctx context.Context, location Location, image Image, running proxmox.UPID) error {
	mirrors, source := image.mirrors, r.desired.Spec.SourceImage
	if running != "" {
		n := r.mirrorOf(ctx, running, mirrors)
		mirrors = slices.Concat(mirrors[n:], mirrors[:n])
	}
	var failures []string
	var err error
	for n, m := range mirrors {
		task := running
		if running = ""; task == "" {
			if task, err = r.client.DownloadImage(ctx, proxmox.DownloadRequest{
				Host: r.Host, Storage: location.Images, Name: image.Name, URL: m.url, Checksum: source.Checksum, ChecksumType: source.ChecksumType,
			}); err != nil {
				return explainDownload(err, nil, r.desired, location, m)
			}
		}
		if err = r.awaitDownload(ctx, location, task, newDownloadFrom(mirrors, n)); !isMirrorFailure(err) || len(mirrors) == 1 {
			return err
		}
		failures = append(failures, err.Error())
		if n+1 < len(mirrors) {
			r.publish(corev1.EventTypeWarning, v1alpha1.EventImageDownloadFailed, fmt.Sprintf("host %s: %v; trying %s", r.displayName(r.Region, r.Host), err, mirrors[n+1].redacted))
		}
	}
	return &stepError{text: "no mirror of spec.sourceImage.urls works: " + strings.Join(failures, "; "), err: err}
}

// isMirrorFailure reports whether a download may succeed from another mirror.
func isMirrorFailure(err error) bool {
	step, ok := errors.AsType[*stepError](err)
	return ok && step.mirror
}

// downloadFrom is a download from one of several mirrors.
type downloadFrom struct {
	mirror mirror
	// suffix of the progress names the mirror in use and the one that failed before. It is
	// empty if there is only one.
	suffix string
	// hasNext is whether there is another mirror if this one does not respond.
	hasNext bool
}

// newDownloadFrom returns the download from the nth mirror, after those before failed.
func newDownloadFrom(mirrors []mirror, n int) downloadFrom {
	from := downloadFrom{mirror: mirrors[n], hasNext: n+1 < len(mirrors)}
	if len(mirrors) > 1 {
		from.suffix = " from " + mirrors[n].redacted
	}
	if n > 0 {
		from.suffix += ", because " + mirrors[n-1].redacted + " failed"
	}
	return from
}

// connectTimeout is how long a mirror may take to send the first bytes if there is another
// one. The wget of Proxmox waits for minutes, 20 times.
const connectTimeout = time.Minute

// isUnresponsive reports whether a download that runs since start should be left for the
// next mirror: its log shows no response.
func (d downloadFrom) isUnresponsive(log []string, running time.Duration) bool {
	return d.hasNext && running >= connectTimeout && parseProgress(log) == "" &&
		!slices.ContainsFunc(log, func(line string) bool { return strings.HasPrefix(line, "Saving to:") })
}

// mirrorOf returns the index of the mirror that a running task downloads from, and 0 if
// its log does not contain it yet.
func (r *hostReconciler) mirrorOf(ctx context.Context, task proxmox.UPID, mirrors []mirror) int {
	if len(mirrors) == 1 {
		return 0
	}
	log, err := r.client.TaskLog(ctx, task)
	if err != nil {
		return 0
	}
	return max(0, slices.IndexFunc(mirrors, func(m mirror) bool {
		return slices.ContainsFunc(log, func(line string) bool { return strings.HasPrefix(line, "downloading "+m.url+" to ") })
	}))
}
