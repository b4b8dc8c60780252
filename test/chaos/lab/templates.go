// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	templatecontroller "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	templateName  = "prepared"
	prepareSecret = "prepare"
	sharedStorage = "shared"
	// preparationTime is how long a builder VM runs, in simulated time: longer than the interval
	// of its checks.
	preparationTime = 15 * time.Second
)

// TemplateOptions configure the ProxmoxTemplate of an Env.
type TemplateOptions struct {
	// Shared builds the template once on a shared storage instead of on each host.
	Shared bool
}

// apply adds the shared storage, what a token for a resource pool needs to build templates, and
// the privilege to read files of guests.
func (o TemplateOptions) apply(s *pvesim.Scenario) {
	guestFiles := "VM.GuestAgent.FileRead"
	if s.Version == "8.4" {
		guestFiles = "VM.Monitor"
	}
	if o.Shared {
		s.Storages = append(s.Storages, pvesim.Storage{ID: sharedStorage, Type: "rbd", Content: []string{"images"}, Size: pvesim.TiB})
	}
	for i := range s.Roles {
		if slices.Contains(s.Roles[i].Privileges, "VM.PowerMgmt") {
			s.Roles[i].Privileges = append(s.Roles[i].Privileges, guestFiles)
		}
		if s.Roles[i].ID == "KarpenterHost" {
			s.Roles[i].Privileges = append(s.Roles[i].Privileges, "Sys.AccessNetwork")
			s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/storage/" + sharedStorage, Role: "KarpenterDisk", User: "kubernetes@pve"})
		}
	}
}

// builders are the guests of builder VMs.
type builders struct {
	pvesim.ScriptedGuests
	options TemplateOptions
	images  *testenv.Images
	// volumes are those of other users.
	volumes map[string]bool

	mu sync.Mutex
	// prepared are the VMIDs of builder VMs that powered themselves off.
	prepared map[int]bool
}

func newBuilders(t testing.TB, o TemplateOptions) *builders {
	t.Helper()
	return &builders{
		options: o, images: testenv.ServeImages(t, 64<<10), prepared: map[int]bool{},
		ScriptedGuests: pvesim.ScriptedGuests{Script: func(m *pvesim.Machine) *pvesim.Script {
			for _, cd := range m.CDROMs() {
				if strings.Contains(cd.Volid, "karpenter-builder-") {
					return &pvesim.Script{PowerOff: true, After: preparationTime, Agent: &pvesim.Agent{ReadFile: readGuestFile}}
				}
			}
			return nil
		}},
	}
}

// readGuestFile returns the status of cloud-init.
func readGuestFile(_ context.Context, name string) ([]byte, error) {
	if name != "/run/cloud-init/status.json" {
		return nil, fs.ErrNotExist
	}
	return []byte(`{"v1": {"stage": "modules-final"}}`), nil
}

// Boot runs a guest and records whether it powered itself off.
func (b *builders) Boot(ctx context.Context, m *pvesim.Machine) {
	b.ScriptedGuests.Boot(ctx, m)
	if ctx.Err() == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.prepared[m.VMID] = true
	}
}

// CreateTemplate creates the ProxmoxTemplate.
func (e *Env) CreateTemplate() {
	e.t.Helper()
	storages := []string{"local", "local-lvm"}
	if e.builders.options.Shared {
		storages = []string{sharedStorage, "local"}
	}
	secret := v1alpha1.SecretReference{Name: prepareSecret, Namespace: metav1.NamespaceSystem}
	testenv.Must(e.t, e.Kube.Create(e.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: secret.Name, Namespace: secret.Namespace},
		Data:       map[string][]byte{"user-data": []byte("#cloud-config\npower_state: {mode: poweroff}\n")},
	}))
	testenv.Must(e.t, e.Kube.Create(e.t.Context(), &v1alpha1.ProxmoxTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: templateName, UID: types.UID(uuid.NewString()), Generation: 1},
		Spec: v1alpha1.ProxmoxTemplateSpec{
			SourceImage: v1alpha1.SourceImage{URL: e.builders.images.URL + "/noble.img"}, StorageIDs: storages, ResourcePool: e.resourcePool,
			Machine: "q35", BIOS: "seabios", CPU: v1alpha1.CPU{Type: "x86-64-v2-AES"}, Tags: []string{"karpenter"},
			Network: []v1alpha1.NetworkInterface{{Bridge: "vmbr0", Model: "virtio", MTU: 1500}},
			Agent:   &v1alpha1.Agent{Enabled: true},
			// A builder VM that fails, because this machine stalled for longer than its time limit, is retried soon.
			Prepare: &v1alpha1.Preparation{TemplatesRef: secret, DiskSize: "8G", KeepFailed: &metav1.Duration{}},
		},
	}))
}

// DeleteTemplate deletes the ProxmoxTemplate. Its finalizer remains.
func (e *Env) DeleteTemplate() {
	e.t.Helper()
	t := &v1alpha1.ProxmoxTemplate{ObjectMeta: metav1.ObjectMeta{Name: templateName}}
	testenv.Must(e.t, client.IgnoreNotFound(e.Kube.Delete(e.t.Context(), t)))
}

// templates returns the ProxmoxTemplate, if it exists.
func (e *Env) templates() []v1alpha1.ProxmoxTemplate {
	if e.builders == nil {
		return nil
	}
	list := &v1alpha1.ProxmoxTemplateList{}
	if err := e.Kube.List(context.Background(), list); err != nil {
		e.t.Errorf("listing templates: %v", err)
	}
	return list.Items
}

// UnreportedTemplate returns the ProxmoxTemplate if it is neither up to date nor reports why, or
// "".
func (e *Env) UnreportedTemplate() string {
	for _, t := range e.templates() {
		if ok, message := isUpToDate(&t); t.DeletionTimestamp.IsZero() && !ok && message == "" {
			return fmt.Sprintf("%s: %v", t.Name, t.Status.Conditions)
		}
	}
	return ""
}

// isUpToDate reports whether a ProxmoxTemplate is up to date, and the message of the condition.
func isUpToDate(t *v1alpha1.ProxmoxTemplate) (ok bool, message string) {
	c := t.StatusConditions().Get(v1alpha1.ConditionTemplateUpToDate)
	if c == nil {
		return false, ""
	}
	return c.IsTrue(), c.Message
}

// templateControllers are the controllers of ProxmoxTemplates.
type templateControllers struct {
	recorder  *testenv.Recorder
	build     *build.Controller
	lifecycle *templatecontroller.Controller
}

func (p *Process) newTemplateControllers(c proxmox.Client) {
	recorder := &testenv.Recorder{}
	provider := testenv.NewTemplates(template.Deps{
		Clients: map[string]proxmox.Client{testenv.Region: c}, Inventory: p.Inventory, Clock: p.env.Clock, KubeCluster: kubeCluster,
		Recorder: recorder, RenderBootData: p.Boot.PreparationImage,
	}, orphanGrace)
	p.templates = &templateControllers{
		recorder: recorder,
		build:    build.NewController(p.kube, provider), lifecycle: templatecontroller.NewController(p.kube, provider, recorder, p.Boot.CheckPreparation),
	}
}

// startDueTemplate starts the jobs that a ProxmoxTemplate needs, at least once per poll, as the
// events of the inventory do.
func (p *Process) startDueTemplate(t *v1alpha1.ProxmoxTemplate) {
	start := func(controller string, do func(context.Context) (reconcile.Result, error)) {
		p.startJob(controller, t.UID, func(ctx context.Context) (reconcile.Result, error) {
			result, err := do(ctx)
			if result.RequeueAfter == 0 {
				result.RequeueAfter = pollInterval
			}
			result.RequeueAfter = min(result.RequeueAfter, pollInterval)
			return result, err
		})
	}
	start("template.lifecycle", func(ctx context.Context) (reconcile.Result, error) {
		return p.templates.lifecycle.Reconcile(ctx, t.DeepCopy())
	})
	for _, host := range p.env.Hosts {
		start("template.build "+host, func(ctx context.Context) (reconcile.Result, error) {
			return p.templates.build.Reconcile(ctx, build.Request{Template: t.Name, Region: testenv.Region, Host: host})
		})
	}
}

// templateViolations returns everything that does not match the ProxmoxTemplate: a template too
// many or too few, or one that was not prepared, builder VMs, boot drives, volumes and tokens
// without it, and changed guests of other users.
func (e *Env) templateViolations(p *Process) (violations []string) {
	ctx, want := context.Background(), map[int]bool{}
	image := ""
	for _, t := range e.templates() {
		if !t.DeletionTimestamp.IsZero() {
			waiting := p.templates.recorder.Messages(v1alpha1.EventWaitingOnTemplateDeletion)
			return []string{fmt.Sprintf("template %s is still being deleted: %s%s", t.Name, strings.Join(waiting[max(0, len(waiting)-1):], ""), p.LastErrors(t.UID))}
		}
		if ok, message := isUpToDate(&t); !ok {
			return []string{fmt.Sprintf("template %s is not up to date: %s%s", t.Name, message, p.LastErrors(t.UID))}
		}
		hosts := map[string]bool{}
		for _, entry := range t.Status.Zones {
			zone, err := v1alpha1.ParseTemplateZone(entry)
			if err != nil {
				return []string{err.Error()}
			}
			want[zone.VMID], hosts[zone.Host] = true, true
		}
		count := len(e.Hosts)
		if e.builders.options.Shared {
			count = 1
		}
		if len(hosts) != len(e.Hosts) || len(want) != count {
			violations = append(violations, fmt.Sprintf("template %s is on %v, want %d templates for %v", t.Name, t.Status.Zones, count, e.Hosts))
		}
		image = t.Status.ImageID
	}
	volumes, found := e.preparedVolumes(want)
	violations = append(violations, found...)
	violations = append(violations, e.newVolumeViolations(ctx, image, volumes)...)
	return append(violations, e.tokenViolations(ctx)...)
}

// preparedVolumes compares the existing guests with the expected templates and returns the
// volumes of these.
func (e *Env) preparedVolumes(want map[int]bool) (volumes, violations []string) {
	others, violations := e.foreignViolations()
	for _, row := range others {
		config, err := e.admin.VMConfig(context.Background(), row.Host, row.VMID)
		mark, _ := ownership.Read(config.Description())
		e.builders.mu.Lock()
		prepared := e.builders.prepared[row.VMID]
		e.builders.mu.Unlock()
		switch {
		case !want[row.VMID]:
			violations = append(violations, fmt.Sprintf("VM %d (%s, %s, lock %q) on host %s leaked", row.VMID, row.Name, row.Status, row.Lock, row.Host))
		case err != nil:
			violations = append(violations, fmt.Sprintf("reading template %d: %v", row.VMID, err))
		case !config.IsTemplate() || mark.Builder != nil:
			violations = append(violations, fmt.Sprintf("VM %d on host %s is not a finished template", row.VMID, row.Host))
		case !prepared:
			violations = append(violations, fmt.Sprintf("template %d on host %s was not prepared", row.VMID, row.Host))
		}
		delete(want, row.VMID)
		for _, drive := range config.Drives().All() {
			volumes = append(volumes, drive.VolumeID)
		}
	}
	for vmid := range want {
		violations = append(violations, fmt.Sprintf("template %d is missing", vmid))
	}
	return volumes, violations
}

// newVolumeViolations returns leaked volumes: those that are neither the image nor a disk of a
// template.
func (e *Env) newVolumeViolations(ctx context.Context, image string, disks []string) (violations []string) {
	volumes, err := e.listVolumes(ctx)
	if err != nil {
		violations = append(violations, fmt.Sprintf("listing volumes: %v", err))
	}
	for at, volume := range volumes {
		isImage := image != "" && strings.HasSuffix(volume, ":import/"+image)
		if !e.builders.volumes[at] && !isImage && !slices.Contains(disks, volume) {
			violations = append(violations, fmt.Sprintf("volume %s leaked", at))
		}
	}
	return violations
}

// listVolumes returns all volumes by host and ID.
func (e *Env) listVolumes(ctx context.Context) (map[string]string, error) {
	resources, err := e.admin.Resources(ctx)
	volumes := map[string]string{}
	for _, row := range resources.Storages {
		var listed []proxmox.Volume
		if err == nil {
			listed, err = e.admin.Volumes(ctx, row.Host, row.Name, "")
		}
		for _, volume := range listed {
			volumes[row.Host+"/"+volume.ID] = volume.ID
		}
	}
	return volumes, err
}

// recordVolumes records the existing volumes as those of other users.
func (e *Env) recordVolumes() {
	e.t.Helper()
	volumes, err := e.listVolumes(e.t.Context())
	testenv.Must(e.t, err)
	e.builders.volumes = map[string]bool{}
	for at := range volumes {
		e.builders.volumes[at] = true
	}
}
