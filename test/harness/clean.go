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

// cloneTimeout limits how long Clean waits for the clones of a killed controller.
const cloneTimeout = 10 * time.Minute

// ownerPattern matches the ownership mark that the controller writes into a VM's notes.
var ownerPattern = regexp.MustCompile(`<!-- karpenter\.proxmox\.sinextra\.dev (\{[^\n]*\}) -->`)

// TestNotes returns the notes of a guest that a test creates itself, so Clean finds it. The
// controller does not recognize them as an ownership mark.
func TestNotes(cluster string, vmid int) string {
	return fmt.Sprintf("end-to-end test, kubernetes cluster %s, vmid %d", cluster, vmid)
}

// isCreatedBy reports whether a guest was created by the controller of a Kubernetes cluster or
// by its test.
func (g Guest) isCreatedBy(cluster string) bool {
	return g.OwnedBy(cluster) || strings.Contains(g.Notes(), TestNotes(cluster, g.VMID))
}

// OwnedBy reports whether a guest is a Kubernetes cluster's VM. The ownership mark includes
// the VMID, so a copy of a VM is not owned.
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

// isBootDriveOf reports whether a volume is a boot drive for VMs of a Kubernetes cluster.
func (v Volume) isBootDriveOf(cluster string) bool {
	head, _, _ := strings.Cut(cluster, "-")
	_, file, _ := strings.Cut(v.ID, ":iso/")
	return head != "" && strings.HasPrefix(file, "karpenter-"+head+"-")
}

// HoldingsOf returns the guests and boot drives that belong to a Kubernetes cluster according
// to their notes and file names. It ignores guest names and VMID ranges.
func (a *API) HoldingsOf(ctx context.Context, cluster string) (Holdings, error) {
	every := *a
	every.vmids = func(int) bool { return true }
	all, err := every.Holdings(ctx)
	var own Holdings
	for _, guest := range all.Guests {
		if guest.isCreatedBy(cluster) {
			own.Guests = append(own.Guests, guest)
		}
	}
	for _, volume := range all.Volumes {
		if volume.isBootDriveOf(cluster) {
			own.Volumes = append(own.Volumes, volume)
		}
	}
	return own, err
}

// Clean deletes the guests and boot drives of a Kubernetes cluster whose controller has ended
// and returns a description of each. It fails without a cluster ID.
func (a *API) Clean(ctx context.Context, cluster string) (removed []string, err error) {
	if cluster == "" {
		return nil, errors.New("cleaning up: no Kubernetes cluster ID")
	}
	if err := a.waitForClones(ctx); err != nil {
		return nil, err
	}
	own, err := a.HoldingsOf(ctx, cluster)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, guest := range own.Guests {
		if err := a.Destroy(ctx, guest); err != nil {
			problems = append(problems, fmt.Errorf("deleting VM %d on host %s: %w", guest.VMID, guest.Host, err))
			continue
		}
		removed = append(removed, fmt.Sprintf("VM %d (%s) on host %s", guest.VMID, guest.Name, guest.Host))
	}
	for _, volume := range own.Volumes {
		storage, _, _ := strings.Cut(volume.ID, ":")
		err := a.Run(ctx, http.MethodDelete, "/nodes/"+volume.Host+"/storage/"+storage+"/content/"+url.PathEscape(volume.ID), nil)
		if err != nil && !isNotFound(err) { // a shared storage lists it once per host
			problems = append(problems, fmt.Errorf("deleting volume %s on host %s: %w", volume.ID, volume.Host, err))
			continue
		}
		removed = append(removed, fmt.Sprintf("boot drive %s on host %s", volume.ID, volume.Host))
	}
	return removed, errors.Join(problems...)
}

// waitForClones waits for clones in progress. Until a clone ends, its notes do not identify
// its owner.
func (a *API) waitForClones(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cloneTimeout)
	defer cancel()
	hosts, err := a.online(ctx)
	if err != nil {
		return err
	}
	for _, host := range hosts {
		for {
			var running []struct{ UPID string }
			err := a.Call(ctx, http.MethodGet, "/nodes/"+host+"/tasks", url.Values{"source": {"active"}, "typefilter": {"qmclone"}}, &running)
			if err != nil {
				return fmt.Errorf("listing tasks of host %s: %w", host, err)
			}
			if len(running) == 0 {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("waiting for clone %s: %w", running[0].UPID, ctx.Err())
			case <-time.After(time.Second):
			}
		}
	}
	return nil
}
