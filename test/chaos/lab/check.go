// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// WithinRounds is how often a Process may have looked at everything after the last
// trouble before all must be in order. It looks every ten seconds: that is the 15
// minutes that Karpenter gives a Claim to register, and as much again for time-outs
// that must be longer here than in life. Rounds count work and not time: a machine
// that is busy with something else makes them longer, not more.
const WithinRounds = 2 * int(15*time.Minute/pollInterval)

// Settling is how long it took until all was in order.
type Settling struct {
	Rounds int
	// Simulated time says little on a busy machine.
	Simulated time.Duration
}

func (s Settling) String() string {
	return fmt.Sprintf("%d rounds (%s simulated)", s.Rounds, s.Simulated.Round(time.Second))
}

// Converge waits until nothing is amiss, and says how long that took; otherwise what
// is still amiss after the bound.
func (w *World) Converge(p *Process) (Settling, []string) {
	began, first := w.Clock.Now(), p.Rounds()
	for {
		amiss := w.Amiss(p)
		took := Settling{Rounds: p.Rounds() - first, Simulated: w.Clock.Since(began)}
		if len(amiss) == 0 || took.Rounds > WithinRounds || p.ctx.Err() != nil {
			return took, amiss
		}
		w.rootAtWork()
		time.Sleep(20 * time.Millisecond)
	}
}

// Amiss lists all that is not as the Claims say: a VM too many or too few, a volume,
// boot drive, token, reservation or address without its Claim, somebody else's guest
// touched.
func (w *World) Amiss(p *Process) []string {
	ctx := context.Background()
	var amiss []string
	note := func(format string, args ...any) { amiss = append(amiss, fmt.Sprintf(format, args...)) }
	want, uids := map[int]*karpv1.NodeClaim{}, map[string]*karpv1.NodeClaim{}
	for _, claim := range w.Claims() {
		if !claim.DeletionTimestamp.IsZero() {
			note("claim %s (%s) is still being deleted%s", claim.Name, claim.Status.ProviderID, p.Last(claim.UID))
			continue
		}
		in, ok, err := instance.ReadIntent(&claim)
		if err != nil || !ok || claim.Annotations[v1alpha1.AnnotationLaunchCompleted] == "" {
			note("claim %s is not launched yet: %v %s%s", claim.Name, err, claim.Annotations[v1alpha1.AnnotationLaunchProgress], p.Last(claim.UID))
			continue
		}
		if claim.Annotations[v1alpha1.AnnotationBootDataStatus] != v1alpha1.BootDataInitialized {
			note("claim %s still has its boot drive%s", claim.Name, p.Last(claim.UID))
		}
		want[in.VMID], uids[string(claim.UID)] = &claim, &claim
	}
	if len(amiss) > 0 {
		for _, row := range w.guests() {
			if row.VMID >= FirstVMID && row.Lock != "" {
				note("VM %d on host %s is locked (%s)", row.VMID, row.Host, row.Lock)
			}
		}
		return amiss // the rest would only be consequences
	}
	amiss = append(amiss, w.amissGuests(want)...)
	amiss = append(amiss, w.amissVolumes(ctx, want)...)
	secrets := &corev1.SecretList{}
	if err := w.Kube.List(ctx, secrets, client.HasLabels{bootdata.TokenLabel}); err != nil {
		note("listing the tokens, %v", err)
	}
	for _, secret := range secrets.Items {
		note("token %s is left", secret.Name)
	}
	amiss = append(amiss, w.amissFirewall(want)...)
	amiss = append(amiss, w.amissAddresses(p, want)...)
	for uid, r := range p.View().Reservations {
		if uids[uid] == nil {
			note("the reservation of VM %d for claim %s is left", r.VMID, uid)
		}
	}
	return amiss
}

// amissGuests compares the guests that are there with those that should be.
func (w *World) amissGuests(want map[int]*karpv1.NodeClaim) (amiss []string) {
	strangers := w.known()
	found := map[int]bool{}
	for _, row := range w.guests() {
		if was, ok := strangers[row.VMID]; ok {
			delete(strangers, row.VMID)
			if now, err := w.portrait(row); err != nil || now != was {
				amiss = append(amiss, fmt.Sprintf("somebody else's guest %d was touched:\nwas %s\nnow %s (%v)", row.VMID, was, now, err))
			}
			continue
		}
		claim := want[row.VMID]
		if claim == nil {
			amiss = append(amiss, fmt.Sprintf("VM %d (%s, %s, lock %q) on host %s is left", row.VMID, row.Name, row.Status, row.Lock, row.Host))
			continue
		}
		found[row.VMID] = true
		cfg, err := w.admin.VMConfig(context.Background(), row.Host, row.VMID)
		switch {
		case err != nil:
			amiss = append(amiss, fmt.Sprintf("reading VM %d, %v", row.VMID, err))
		case !strings.EqualFold(cfg.SMBIOS().UUID, string(claim.UID)):
			amiss = append(amiss, fmt.Sprintf("VM %d is not that of claim %s", row.VMID, claim.Name))
		case !grown(cfg):
			amiss = append(amiss, fmt.Sprintf("the disk of VM %d of claim %s was never grown", row.VMID, claim.Name))
		case w.addresses != nil && !slices.Equal(cfg.Network().Addresses(), addressesOf(claim)):
			amiss = append(amiss, fmt.Sprintf("VM %d of claim %s has the addresses %v, want %v", row.VMID, claim.Name, cfg.Network().Addresses(), addressesOf(claim)))
		case row.Status != "running":
			amiss = append(amiss, fmt.Sprintf("VM %d of claim %s is %s", row.VMID, claim.Name, row.Status))
		}
	}
	for vmid, claim := range want {
		if !found[vmid] {
			amiss = append(amiss, fmt.Sprintf("VM %d of claim %s is missing", vmid, claim.Name))
		}
	}
	for vmid := range strangers {
		amiss = append(amiss, fmt.Sprintf("somebody else's guest %d is gone", vmid))
	}
	return amiss
}

// amissFirewall says which rules are left of VMs that are gone, and which VMs do not
// have exactly theirs.
func (w *World) amissFirewall(want map[int]*karpv1.NodeClaim) (amiss []string) {
	groups := w.Sim.FirewallGroups()
	for vmid := range groups {
		if _, foreign := w.known()[vmid]; !foreign && want[vmid] == nil && vmid >= FirstVMID {
			amiss = append(amiss, fmt.Sprintf("the firewall rules of VM %d are left", vmid))
		}
	}
	for vmid, claim := range want {
		if !slices.Equal(groups[vmid], []string{securityGroup}) {
			amiss = append(amiss, fmt.Sprintf("VM %d of claim %s has the security groups %v", vmid, claim.Name, groups[vmid]))
		}
	}
	return amiss
}

// grown tells whether the boot disk has the size that the class asks for.
func grown(cfg proxmox.VMConfig) bool {
	disk, ok := cfg.Drives().Boot()
	return ok && disk.SizeBytes >= diskBytes
}

// amissVolumes looks for disks and boot drives that belong to nobody.
func (w *World) amissVolumes(ctx context.Context, want map[int]*karpv1.NodeClaim) (amiss []string) {
	strangers, c := w.known(), w.admin
	for _, host := range w.Hosts {
		for storage, content := range map[string]string{"local-lvm": "images", "local": "iso"} {
			volumes, err := c.Volumes(ctx, host, storage, content)
			if err != nil {
				amiss = append(amiss, fmt.Sprintf("listing storage %s of host %s, %v", storage, host, err))
			}
			for _, volume := range volumes {
				_, foreign := strangers[volume.VMID]
				if strings.Contains(volume.ID, "karpenter-") || (volume.VMID >= FirstVMID && want[volume.VMID] == nil && !foreign) {
					amiss = append(amiss, fmt.Sprintf("volume %s on host %s is left", volume.ID, host))
				}
			}
		}
	}
	return amiss
}

// rootAtWork does what the product asks a person for: a clone or a destroy that died
// with its Host leaves a locked configuration, and only root may unlock that.
func (w *World) rootAtWork() {
	ctx := context.Background()
	for _, row := range w.guests() {
		if _, foreign := w.known()[row.VMID]; foreign || row.VMID < FirstVMID || !w.deadLocked(row) || w.Sim.SetConfigLock(row.VMID, "") != nil {
			continue
		}
		w.t.Logf("root destroys VM %d on host %s, locked (%s) by a task that died", row.VMID, row.Host, row.Lock)
		task, err := w.admin.DestroyVM(ctx, row.Host, row.VMID)
		if err == nil {
			_, err = proxmox.WaitTask(ctx, w.admin, task, proxmox.WaitOptions{Clock: w.Clock})
		}
		volumes, listErr := w.admin.Volumes(ctx, row.Host, "local-lvm", "images")
		if err != nil || listErr != nil {
			w.t.Errorf("destroying VM %d as root, %v %v", row.VMID, err, listErr)
		}
		for _, volume := range volumes {
			if volume.VMID == row.VMID {
				_, _ = w.admin.DeleteVolume(ctx, row.Host, volume.ID) // what stays is found amiss
			}
		}
	}
}

// deadLocked tells whether a guest is locked by a clone or destroy that does not
// run any more.
func (w *World) deadLocked(row proxmox.GuestRow) bool {
	kind, ok := map[string]string{"clone": "qmclone", "destroyed": "qmdestroy"}[row.Lock]
	if !ok {
		return false
	}
	tasks, err := w.admin.RunningTasks(context.Background(), row.Host, kind)
	if err != nil || len(tasks) > 0 {
		return false
	}
	cfg, err := w.admin.VMConfig(context.Background(), row.Host, row.VMID)
	return err == nil && cfg.Lock() == row.Lock
}

// Stranger lets somebody else make a VM of that id from the Template of a Host.
// False when somebody was quicker.
func (w *World) Stranger(host string, vmid int) bool {
	ctx, c := context.Background(), w.admin
	template := 9000 + slices.Index(w.Hosts, host)
	task, err := c.CloneVM(ctx, proxmox.CloneRequest{Host: host, TemplateID: template, VMID: vmid, Name: "theirs"})
	if err != nil {
		return false
	}
	status, err := proxmox.WaitTask(ctx, c, task, proxmox.WaitOptions{Clock: w.Clock})
	if err != nil || status.Err() != nil {
		return false
	}
	for _, row := range w.guests() {
		if row.VMID == vmid {
			return w.remember(row) == nil
		}
	}
	return false
}

func (w *World) known() map[int]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.strangers)
}

// remember a guest of somebody else as it is now.
func (w *World) remember(row proxmox.GuestRow) error {
	portrait, err := w.portrait(row)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.strangers[row.VMID] = portrait
	return nil
}

// portrait is a guest's power and configuration.
func (w *World) portrait(row proxmox.GuestRow) (string, error) {
	cfg, err := w.admin.VMConfig(context.Background(), row.Host, row.VMID)
	if err != nil {
		return "", err
	}
	raw, err := json.Marshal(cfg.Options)
	if err != nil {
		return "", err
	}
	status, err := w.admin.VMStatus(context.Background(), row.Host, row.VMID)
	return status.Status + " " + string(raw), err
}

func (w *World) guests() []proxmox.GuestRow {
	resources, err := w.admin.Resources(context.Background())
	if err != nil {
		w.t.Logf("listing the guests, %v", err)
	}
	return resources.Guests
}

// CancelTasks ends every task under way, as an admin does with one that hangs.
func (w *World) CancelTasks() {
	ctx := context.Background()
	for _, host := range w.Hosts {
		tasks, err := w.admin.RunningTasks(ctx, host, "")
		if err != nil {
			continue // the Host is away, and its tasks with it
		}
		for _, task := range tasks {
			_ = w.admin.CancelTask(ctx, task.UPID) // it may have ended by itself
		}
	}
}
