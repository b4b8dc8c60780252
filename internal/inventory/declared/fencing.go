// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package declared

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// FencingConfigMap is the name of the ConfigMap in which administrators list the Hosts that
// they powered off: each key is a Host (see HostName.Key), each value a Fence.
const FencingConfigMap = "karpenter-proxmox-fencing"

const (
	// fenceDelay is how long after it lost power Proxmox may report a Host as online.
	fenceDelay = time.Minute
	// maxClockSkew is how far the clock of an administrator may be ahead.
	maxClockSkew = 10 * time.Minute
)

// Fence is the declaration that a Host is powered off. It ends when the Host is seen online
// after that time.
type Fence struct {
	Time time.Time `json:"time"`
}

// HasEnded reports whether the Host was seen online after it was powered off.
func (f Fence) HasEnded(lastOnline time.Time) bool { return lastOnline.After(f.Time.Add(fenceDelay)) }

// ParseFences reads the data of FencingConfigMap, whose values are JSON or YAML. It returns the
// valid entries, and an error for each other one.
func ParseFences(data map[string]string, now time.Time) (map[observed.HostName]Fence, []error) {
	fences, errs := map[observed.HostName]Fence{}, []error(nil)
	for _, key := range slices.Sorted(maps.Keys(data)) {
		name, err := observed.ParseHostKey(key)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var fence Fence
		err = yaml.UnmarshalStrict([]byte(data[key]), &fence)
		switch fence.Time = fence.Time.UTC(); {
		case err != nil || fence.Time.IsZero():
			errs = append(errs, fmt.Errorf("key %q: found %q, want the time when the host was powered off, for example {\"time\":\"2026-01-31T12:00:00Z\"}", key, data[key]))
		case fence.Time.After(now.Add(maxClockSkew)):
			errs = append(errs, fmt.Errorf("key %q: time %s is in the future", key, fence.Time.Format(time.RFC3339)))
		default:
			fences[name] = fence
		}
	}
	return fences, errs
}
