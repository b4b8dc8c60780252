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
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
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
	return a.eachOnline(ctx, func(host string) error {
		for {
			var running []struct{ UPID string }
			err := a.Call(ctx, http.MethodGet, "/nodes/"+host+"/tasks", url.Values{"source": {"active"}, "typefilter": {"qmclone"}}, &running)
			if err != nil || len(running) == 0 {
				return err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("waiting for clone %s: %w", running[0].UPID, ctx.Err())
			case <-time.After(time.Second):
			}
		}
	})
}

// Holdings are the guests and volumes of a Proxmox cluster at one moment.
type Holdings struct {
	Guests  []Guest
	Volumes []Volume
}

// Holdings reads the guests and volumes of all online hosts.
func (a *API) Holdings(ctx context.Context) (Holdings, error) {
	guests, err := a.Guests(ctx)
	if err != nil {
		return Holdings{}, fmt.Errorf("listing holdings: %w", err)
	}
	volumes, err := a.Volumes(ctx)
	if err != nil {
		return Holdings{}, fmt.Errorf("listing holdings: %w", err)
	}
	return Holdings{Guests: guests, Volumes: volumes}, nil
}

// Diff describes how after differs from before: leaked VMs and volumes, changed guests, and
// guests and volumes that are gone.
func (before Holdings) Diff(after Holdings) (out []string) {
	was, is := before.states(), after.states()
	for what, state := range is {
		if old, known := was[what]; !known {
			out = append(out, fmt.Sprintf("%s leaked (%s)", what, state))
		} else if old != state {
			out = append(out, fmt.Sprintf("%s changed:\nit was %s\nit is  %s", what, old, state))
		}
	}
	for what := range was {
		if _, left := is[what]; !left {
			out = append(out, what+" is gone")
		}
	}
	slices.Sort(out)
	return out
}

// Leaks describes the objects that a Kubernetes cluster still has, and how a Proxmox cluster differs from before.
func (before Holdings) Leaks(ctx context.Context, api *API, kube client.Client) ([]string, error) {
	after, err := api.Holdings(ctx)
	if err != nil {
		return nil, err
	}
	left, err := LeakedObjects(ctx, kube)
	return append(left, before.Diff(after)...), err
}

// states returns the state of each guest and volume.
func (before Holdings) states() map[string]string {
	states := map[string]string{}
	for _, g := range before.Guests {
		states[fmt.Sprintf("guest %d on host %s", g.VMID, g.Host)] = fmt.Sprint(g.Name, " ", g.Status, " ", g.Template, " ", g.Config)
	}
	for _, v := range before.Volumes {
		states[fmt.Sprintf("volume %s on host %s", v.ID, v.Host)] = "a volume"
	}
	return states
}

// LeakedObjects describes the NodeClaims, Nodes and join tokens that a Kubernetes cluster
// still has.
func LeakedObjects(ctx context.Context, kube client.Client) (out []string, err error) {
	claims, nodes := &karpv1.NodeClaimList{}, &corev1.NodeList{}
	if err := errors.Join(kube.List(ctx, claims), kube.List(ctx, nodes)); err != nil {
		return nil, fmt.Errorf("listing NodeClaims and Nodes: %w", err)
	}
	for _, claim := range claims.Items {
		out = append(out, "nodeclaim "+claim.Name+" leaked")
	}
	for _, node := range nodes.Items {
		out = append(out, "node "+node.Name+" leaked")
	}
	tokens, err := JoinTokens(ctx, kube)
	for _, token := range tokens {
		out = append(out, "join token secret "+token.Name+" leaked")
	}
	return out, err
}

// JoinTokens returns the Secrets of join tokens that the controller created.
func JoinTokens(ctx context.Context, kube client.Client) ([]corev1.Secret, error) {
	tokens := &corev1.SecretList{}
	if err := kube.List(ctx, tokens, client.InNamespace(metav1.NamespaceSystem), client.HasLabels{v1alpha1.LabelBootstrapToken}); err != nil {
		return nil, fmt.Errorf("listing join tokens: %w", err)
	}
	return tokens.Items, nil
}

// Dump logs the state of a Kubernetes and a Proxmox cluster. console returns the end of a guest's console.
func Dump(ctx context.Context, kube client.Client, api *API, logf func(format string, args ...any), console func(Guest) string) {
	claims, events := &karpv1.NodeClaimList{}, &corev1.EventList{}
	if err := errors.Join(kube.List(ctx, claims), kube.List(ctx, events)); err != nil {
		logf("listing NodeClaims and events: %v", err)
	}
	for _, claim := range claims.Items {
		logf("nodeclaim %s deleting=%t providerID=%s annotations=%v", claim.Name, !claim.DeletionTimestamp.IsZero(), claim.Status.ProviderID, claim.Annotations)
		for _, c := range claim.Status.Conditions {
			logf("  %s=%s %s %s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	slices.SortFunc(events.Items, func(a, b corev1.Event) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, e := range events.Items[max(0, len(events.Items)-40):] {
		logf("event %s %s/%s %s: %s", e.CreationTimestamp.Format(time.TimeOnly), e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	guests, err := api.Guests(ctx)
	logf("%d guests: %v", len(guests), err)
	for _, g := range guests {
		logf("guest %d %s on %s %s lock=%v\n%s", g.VMID, g.Name, g.Host, g.Status, g.Config["lock"], console(g))
	}
	logf("tasks:\n%s", api.Tasks(ctx))
}

// Record is a file that records that a Kubernetes cluster may have VMs in a lab. The process
// that wrote it holds a lock on the file, so a record that can be locked belongs to a run that
// ended without cleaning up.
type Record struct {
	// Cluster is the ID of the Kubernetes cluster.
	Cluster string
	file    *os.File
}

// NewRecord writes and locks a record. A lab is identified by its URL.
func NewRecord(dir, cluster, lab string) (*Record, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating record directory: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, cluster), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("writing record: %w", err)
	}
	r := &Record{Cluster: cluster, file: file}
	// Lock before writing: StaleRecords ignores a record that can be locked but has no lab
	// yet.
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("locking record: %w", err)
	}
	if _, err := file.WriteString(lab); err != nil {
		return nil, fmt.Errorf("writing record: %w", err)
	}
	return r, nil
}

// Remove deletes the record after the run was cleaned up.
func (r *Record) Remove() error { return errors.Join(os.Remove(r.file.Name()), r.file.Close()) }

// Release unlocks the record, so a later run cleans up.
func (r *Record) Release() error { return r.file.Close() }

// StaleRecords locks and returns the records of a lab whose runs have ended.
func StaleRecords(dir, lab string) ([]*Record, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, fmt.Errorf("listing records: %w", err)
	}
	var out []*Record
	for _, name := range names {
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue // removed since it was listed
		}
		content, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(content)) != lab || syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			_ = file.Close() // another lab, or a run that is still active
			continue
		}
		out = append(out, &Record{Cluster: filepath.Base(name), file: file})
	}
	return out, nil
}
