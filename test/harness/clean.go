// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// clonesPatience is how long a clone that a killed controller began may take.
const clonesPatience = 10 * time.Minute

// ownerPattern finds the block that the controller writes into the notes of VMs.
var ownerPattern = regexp.MustCompile(`<!-- karpenter\.proxmox\.sinextra\.dev (\{[^\n]*\}) -->`)

// Mark goes into the notes of guests that a test makes by hand, so that they are
// found as its own. It is not what the controller looks for.
func Mark(cluster string, vmid int) string {
	return fmt.Sprintf("end-to-end test, kubernetes cluster %s, vmid %d", cluster, vmid)
}

// MadeBy tells whether a guest was made by a Kubernetes cluster, or beside it by
// its test.
func (g Guest) MadeBy(cluster string) bool {
	return g.OwnedBy(cluster) || strings.Contains(g.Notes(), Mark(cluster, g.VMID))
}

// OwnedBy tells whether a guest is a Kubernetes cluster's VM. The VMID belongs to
// the mark: a copy that somebody made is somebody's.
func (g Guest) OwnedBy(cluster string) bool {
	found := ownerPattern.FindAllStringSubmatch(g.Notes(), -1)
	if len(found) != 1 {
		return false
	}
	var owner struct {
		VMID    int
		Cluster string
	}
	return json.Unmarshal([]byte(found[0][1]), &owner) == nil && owner.Cluster == cluster && owner.VMID == g.VMID
}

// BootDriveOf tells whether a volume is a boot drive for VMs of a Kubernetes cluster.
func (v Volume) BootDriveOf(cluster string) bool {
	head, _, _ := strings.Cut(cluster, "-")
	_, file, _ := strings.Cut(v.ID, ":iso/")
	return head != "" && strings.HasPrefix(file, "karpenter-"+head+"-")
}

// Remains are what Proxmox holds of a Kubernetes cluster, by what it says of itself:
// never by name or VMID.
func (a *API) Remains(ctx context.Context, cluster string) (Holdings, error) {
	every := *a
	every.vmids = func(int) bool { return true }
	all, err := every.Holdings(ctx)
	var own Holdings
	for _, guest := range all.Guests {
		if guest.MadeBy(cluster) {
			own.Guests = append(own.Guests, guest)
		}
	}
	for _, volume := range all.Volumes {
		if volume.BootDriveOf(cluster) {
			own.Volumes = append(own.Volumes, volume)
		}
	}
	return own, err
}

// Clean removes what Proxmox holds of a Kubernetes cluster whose controller is gone,
// and says what it was.
func (a *API) Clean(ctx context.Context, cluster string) (removed []string, err error) {
	if cluster == "" {
		return nil, errors.New("cleaning up after a run, its Kubernetes cluster has no id")
	}
	if err := a.clonesEnd(ctx); err != nil {
		return nil, err
	}
	own, err := a.Remains(ctx, cluster)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, guest := range own.Guests {
		if err := a.Destroy(ctx, guest); err != nil {
			problems = append(problems, fmt.Errorf("removing VM %d from host %s, %w", guest.VMID, guest.Host, err))
			continue
		}
		removed = append(removed, fmt.Sprintf("VM %d (%s) on host %s", guest.VMID, guest.Name, guest.Host))
	}
	for _, volume := range own.Volumes {
		storage, _, _ := strings.Cut(volume.ID, ":")
		err := a.Run(ctx, http.MethodDelete, "/nodes/"+volume.Host+"/storage/"+storage+"/content/"+url.PathEscape(volume.ID), nil)
		if err != nil && !isGone(err) { // a shared storage shows it once per host
			problems = append(problems, fmt.Errorf("removing volume %s from host %s, %w", volume.ID, volume.Host, err))
			continue
		}
		removed = append(removed, fmt.Sprintf("boot drive %s on host %s", volume.ID, volume.Host))
	}
	return removed, errors.Join(problems...)
}

// clonesEnd waits for clones under way: until its end, a clone does not say whose it is.
func (a *API) clonesEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clonesPatience)
	defer cancel()
	hosts, err := a.Hosts(ctx)
	if err != nil {
		return err
	}
	for host, up := range hosts {
		for up {
			var running []struct{ UPID string }
			err := a.Call(ctx, http.MethodGet, "/nodes/"+host+"/tasks", url.Values{"source": {"active"}, "typefilter": {"qmclone"}}, &running)
			if err != nil {
				return fmt.Errorf("listing the tasks of host %s, %w", host, err)
			}
			if len(running) == 0 {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("waiting for the clone %s to end, %w", running[0].UPID, ctx.Err())
			case <-time.After(time.Second):
			}
		}
	}
	return nil
}
