// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestPrepare(t *testing.T) {
	t.Parallel()
	for storage, templates := range map[string]int{"local-lvm": 3, "shared": 1} {
		testenv.RunSimulated(t, storage, func(t *testing.T) {
			e := newEnv(t, 3, sharedStorage("rbd", "images"))
			prepareTemplates(e, func(p *v1alpha1.Preparation) {
				p.Size, p.MaxConcurrent, p.DiskSize = v1alpha1.VMSize{CPU: 3, Memory: "3Gi"}, 1, "8G"
			})
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
				s.StorageIDs, s.OnBoot, s.Tags = []string{storage, "local"}, new(true), []string{"karpenter"}
			})
			p := e.process()
			e.Expect(p.reconcileUntilComplete().Zones).To(HaveLen(3))
			e.Expect(e.disks()).To(HaveLen(2*templates), "a disk and a cloud-init drive each")
			e.Expect(e.bootDrives()).To(BeEmpty())
			e.Expect(p.owned()).To(HaveLen(templates))
			for _, owned := range p.owned() {
				config := e.config(owned.Host, owned.VMID)
				e.Expect(config.IsTemplate()).To(BeTrue())
				e.Expect(config.Options).To(And(
					HaveKeyWithValue("cores", "1"), HaveKeyWithValue("memory", "1024"), HaveKeyWithValue("boot", "order=scsi0"),
					HaveKeyWithValue("onboot", "1"), HaveKeyWithValue("tags", "karpenter"), HaveKeyWithValue("scsi30", ContainSubstring("cloudinit")),
					HaveKeyWithValue("scsi0", ContainSubstring("size=7630M")), HaveKeyWithValue("description", Not(ContainSubstring("builder"))),
				))
				for _, reason := range []string{v1alpha1.EventTemplatePreparing, v1alpha1.EventTemplatePrepared} {
					e.Expect(p.events.Messages(reason)).To(And(
						HaveLen(templates), ContainElement(ContainSubstring("builder VM %d on host %s", owned.VMID, owned.Host))))
				}
			}
			most, data := e.builders.seen()
			e.Expect(most).To(Equal(1), "spec.prepare.maxConcurrent")
			e.Expect(data.Resources.CPU).To(BeEquivalentTo(3))
			e.Expect(data.Network.Interfaces).To(ConsistOf(HaveField("MacAddr", Not(BeEmpty()))))
			p.deleteAll()
		})
	}
}

// A change of the boot data is rolled out like that of an image: each host can launch at
// every moment, and the old templates are deleted.
func TestPrepareChangedBootData(t *testing.T) {
	simulated(t, 3, func(e *env, p *process) {
		prepareTemplates(e)
		var zones []string
		for _, zone := range p.reconcileUntilComplete().Zones {
			zones = append(zones, zone.String())
			e.inUse[zone.VMID] = "in the status"
		}
		before := p.report(zones...)
		e.setContent("install more")
		p.reconcileUntil(func(g Gomega) {
			report := p.report(zones...)
			e.Expect(report.Zones).To(HaveLen(3), "at every moment")
			if !report.Complete {
				e.Expect(report.Zones).To(Equal(before.Zones), "until the new generation is on every host")
			}
			g.Expect(report.Complete).To(BeTrue(), report.Message)
		})
		e.Expect(p.report(zones...).Zones).NotTo(ContainElement(BeElementOf(before.Zones)))
		clear(e.inUse)
		p.reconcileUntil(func(g Gomega) {
			g.Expect(e.guests()).To(HaveLen(3))
		})
		e.Expect(e.bootDrives()).To(BeEmpty())
	})
}

// The builder VM of a ProxmoxTemplate that prepares nothing anymore is stopped and deleted, also if it
// failed in a release with other hashes.
func TestPrepareRemoved(t *testing.T) {
	t.Parallel()
	for _, failed := range []bool{false, true} {
		testenv.RunSimulated(t, fmt.Sprintf("failed_%t", failed), func(t *testing.T) {
			e := newEnv(t, 1)
			prepareForever(e)
			p := e.process()
			p.reconcileUntilRunning()
			if failed {
				e.Clock.Advance(31 * time.Minute)
				e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
				e.Expect(e.setOldHash(1000).Builder.Failed).NotTo(BeZero())
			}
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Prepare = nil })
			e.Expect(e.mark(e.process().build().VMID)).To(And(HaveField("Hash", e.desired().Hash), HaveField("Builder", BeNil())))
			p.deleteAll()
		})
	}
}

func TestPrepareInvalid(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		prepareTemplates(e)
		e.builders.err = errors.New("reading secret a/b of spec.prepare.templatesRef: not found")
		p.reconcileUntilMessage(Equal("pve1: reading secret a/b of spec.prepare.templatesRef: not found"))
		e.Expect(p.report().Failing).To(BeTrue())
		e.object.Spec.Prepare.Storage = "nfs"
		p.reconcileUntilMessage(Equal(`pve1: spec.prepare.storage "nfs" is not on this host, which has local, local-lvm`))
		e.Expect(p.report().Failing).To(BeTrue())
		p.deleteAll()
	})
}

// Templates that have reached the age of spec.prepare.refreshAfter are rebuilt.
func TestRefreshDue(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		prepareTemplates(e, func(p *v1alpha1.Preparation) { p.RefreshAfter = &metav1.Duration{Duration: 24 * time.Hour} })
		isDue := func() bool {
			due, _ := p.RefreshDue(e.desired())
			return due
		}
		e.Expect(isDue()).To(BeFalse(), "there is no template")
		old := p.build()
		due, after := p.RefreshDue(e.desired())
		e.Expect(due).To(BeFalse())
		e.Expect(after).To(BeNumerically("~", 24*time.Hour, time.Minute))
		e.Clock.Advance(after - time.Second)
		e.Expect(isDue()).To(BeFalse())
		e.Clock.Advance(time.Second)
		e.Expect(isDue()).To(BeTrue())

		e.object = e.object.DeepCopy()
		e.object.Status.Preparation.RefreshedAt = new(metav1.NewTime(p.Clock().Now()))
		e.Expect(isDue()).To(BeFalse(), "it has started")
		zone := p.build()
		e.Expect(zone.VMID).NotTo(Equal(old.VMID))
		e.Expect(isDue()).To(BeFalse(), "even if the clock of the host is a day behind")
		e.Expect(e.mark(zone.VMID).Generation).NotTo(BeEmpty())
	})
}

// A preparation that crashes at any call is completed by the next process, without orphans.
func TestPrepareCrash(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (*env, *process) {
		t.Helper()
		e := newEnv(t, 1, withAllResources("8.4"))
		e.updateSpec(setTagsAndPool)
		prepareTemplates(e, func(p *v1alpha1.Preparation) { p.DiskSize = "8G" })
		return e, e.process()
	}
	t.Run("changed_boot_data", func(t *testing.T) {
		t.Parallel()
		crash(t, func(t *testing.T) (*env, *process) {
			t.Helper()
			e, p := begin(t)
			e.inUse[p.build().VMID] = "in the status"
			e.setContent("install more")
			return e, p
		}, func(e *env, next *process, _ int) {
			e.Expect(next.report().Zones).To(HaveLen(1), "a template at every moment")
			vmid := next.build().VMID
			clear(e.inUse)
			next.reconcileUntilOnly("noble")
			options := e.config("pve1", vmid).Options
			e.Expect(options).To(And(HaveKeyWithValue("tags", "karpenter"), HaveKeyWithValue("cores", "1")))
			e.Expect(options).To(HaveKeyWithValue("description", Not(ContainSubstring("builder"))))
			e.Expect(e.starts()).To(BeNumerically(">=", 2), "no template without a preparation")
		})
	})
	t.Run("then_superseded", func(t *testing.T) {
		t.Parallel()
		crash(t, begin, func(e *env, next *process, n int) {
			if n%2 != 0 {
				return // deleted
			}
			e.setContent("install more")
			next.build()
			next.reconcileUntilOnly("noble")
		})
	})
}
