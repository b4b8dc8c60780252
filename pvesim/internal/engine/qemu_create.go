// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// missingConfig is how synchronous calls say that a VM is not on the host.
func missingConfig(host string, vmid int) error {
	return failf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", host, vmid)
}

var sshKey = regexp.MustCompile(`^(?:[a-z\-]+="?[^"\s]*"?\s+)?(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-nistp(?:256|384|521)|sk-[a-z0-9@.\-]+)\s+AAAA[0-9A-Za-z+/]+={0,3}(?:\s.*)?$`)

// checkSSHKeys validates keys after undoing the second layer of URL encoding.
func checkSSHKeys(v string) error {
	text, err := url.PathUnescape(v)
	if err != nil {
		return failf("SSH public key validation error")
	}
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !sshKey.MatchString(line) || !wholeKey(line) {
			return failf("SSH public key validation error")
		}
	}
	return nil
}

func (e *Engine) postQemu(ctx context.Context, r *Request) (Response, error) {
	if keys, ok := r.value("sshkeys"); ok {
		if err := checkSSHKeys(keys); err != nil {
			return Response{}, err
		}
	}
	if err := e.checkQuorum(); err != nil {
		return Response{}, err
	}
	options := optionsOf(r)
	if err := e.checkCreate(r, options); err != nil {
		return Response{}, err
	}
	if err := e.normalize(options); err != nil {
		return Response{}, err
	}
	if err := e.reserve(ctx, r.host, r.vmid); err != nil {
		return Response{}, failf("unable to create VM %d - %v", r.vmid, err)
	}
	t := e.fork(r, "qmcreate", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		return e.create(ctx, t, r, options)
	})
	return upid(t), nil
}

// checkCreate runs the checks of create in Proxmox's order: pool, VM, storages, options, bridges.
func (e *Engine) checkCreate(r *Request, options map[string]string) error {
	pool := r.Params.Values["pool"]
	if pool != "" && !e.poolExists(pool) {
		return denied(fmt.Sprintf("pool '%s' does not exist", pool))
	}
	if s, ok := r.value("storage"); ok {
		if err := e.need(r, "/storage/"+s, "Datastore.AllocateSpace"); err != nil {
			return err
		}
	}
	allowed := e.Access.Has(r.Who, "/vms/"+strconv.Itoa(r.vmid), "VM.Allocate") ||
		(pool != "" && e.Access.Has(r.Who, "/pool/"+pool, "VM.Allocate"))
	if !allowed {
		return denied("")
	}
	if r.Params.Values["archive"] != "" {
		return failf("restoring backups is not part of the simulator")
	}
	if v, ok := options["cdrom"]; ok {
		options["ide2"] = v
		delete(options, "cdrom")
	}
	if err := e.checkStorageAccess(r, r.vmid, options, r.Params.Values["storage"]); err != nil {
		return err
	}
	if err := e.checkOptions(r, target{vmid: r.vmid, pool: pool, create: true}, options); err != nil {
		return err
	}
	return e.checkBridges(r, options)
}

// normalize rewrites options into the form in which they are stored.
func (e *Engine) normalize(options map[string]string) error {
	e.mu.Lock()
	prefix := e.options["mac_prefix"]
	e.mu.Unlock()
	for key, v := range options {
		switch {
		case qm.IsNetKey(key):
			n := qm.ParseNet(v)
			if n.MAC == "" {
				n.MAC = qm.RandomMAC(prefix)
			}
			options[key] = n.String()
		case qm.IsDriveKey(key):
			d, ok := qm.ParseDrive(key, v)
			if !ok {
				return badParam(key, "unable to parse drive options")
			}
			options[key] = d.String()
		case key == "tags":
			options[key] = qm.NormalizeTags(v)
		case key == "vmgenid" && v == "1":
			options[key] = uuid.NewString()
		case key == "cipassword":
			options[key] = hashPassword(v)
		}
	}
	return nil
}

// reserve creates the new VM's config with "lock: create", so that the VMID is taken from now on, on every host.
func (e *Engine) reserve(ctx context.Context, host string, vmid int) error {
	release, err := e.lockGuest(ctx, nil, host, vmid, locks.Exclusive, 5*time.Second)
	if err != nil {
		return err
	}
	defer release()
	e.mu.Lock()
	defer e.mu.Unlock()
	if g := e.guests[vmid]; g != nil {
		what := "VM"
		if g.Type == "lxc" {
			what = "CT"
		}
		return failf("%s %d already exists on node '%s'", what, vmid, g.Host)
	}
	e.guests[vmid] = &Guest{VMID: vmid, Type: "qemu", Host: host, Config: qm.New(map[string]string{"lock": "create"})}
	return nil
}

func (e *Engine) create(ctx context.Context, t *tasks.Task, r *Request, options map[string]string) error {
	err := e.fillNewVM(ctx, t, r, options)
	if errors.Is(context.Cause(ctx), tasks.ErrPowerLost) {
		return err
	}
	if err != nil {
		e.mu.Lock()
		delete(e.guests, r.vmid)
		e.mu.Unlock()
		return failf("unable to create VM %d - %v", r.vmid, err)
	}
	if pool := r.Params.Values["pool"]; pool != "" {
		if err := e.addToPool(ctx, r.vmid, pool); err != nil {
			return err
		}
	}
	if r.on("start") {
		e.fork(r, "qmstart", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
			return e.startVM(ctx, t, r.host, r.vmid, false)
		})
	}
	return nil
}

func (e *Engine) fillNewVM(ctx context.Context, t *tasks.Task, r *Request, options map[string]string) error {
	release, err := e.lockGuest(ctx, t, r.host, r.vmid, locks.Exclusive, time.Second)
	if err != nil {
		return err
	}
	defer release()
	if tags := options["tags"]; tags != "" && e.Version.CreateChecksTags {
		if err := e.checkCreateTags(r, tags); err != nil {
			return err
		}
	}
	made, err := e.createDisks(ctx, t, r.host, r.vmid, options)
	if err != nil {
		e.discard(r.host, made)
		return err
	}
	if options["boot"] == "" {
		options["boot"] = qm.DefaultBootOrder(options)
	}
	if options["smbios1"] == "" {
		options["smbios1"] = "uuid=" + uuid.NewString()
	}
	if v := options["vmgenid"]; v == "" {
		options["vmgenid"] = uuid.NewString()
	} else if v == "0" {
		delete(options, "vmgenid")
	}
	options["meta"] = fmt.Sprintf("creation-qemu=%s,ctime=%d", e.Version.QEMU, e.Clock.Now().Unix())
	e.mu.Lock()
	defer e.mu.Unlock()
	e.guests[r.vmid].Config = qm.New(options)
	return nil
}

// checkCreateTags reproduces a fault of 9.2: the check is handed a hash instead of the old tags and names it.
func (e *Engine) checkCreateTags(r *Request, tags string) error {
	err := e.checkTags(r, "", tags)
	if err == nil {
		return nil
	}
	e.mu.Lock()
	registered := qm.TagList(e.options["registered-tags"])
	e.mu.Unlock()
	for _, tag := range qm.TagList(tags) {
		if slices.Contains(registered, tag) {
			return err
		}
	}
	return denied("/, Sys.Modify for modifying tag 'HASH(0x5f1d2c3b4a60)'")
}

// discard frees the volumes of a VM that did not come to be.
func (e *Engine) discard(host string, volids []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range volids {
		e.removeVolume(host, id)
	}
}

// createDisks allocates, imports or checks the volume of every drive and writes the result back into the options.
func (e *Engine) createDisks(ctx context.Context, t *tasks.Task, host string, vmid int, options map[string]string) (made []string, err error) {
	for _, key := range qm.DriveKeys(options) {
		d, ok := qm.ParseDrive(key, options[key])
		if !ok {
			return made, badParam(key, "unable to parse drive options")
		}
		if !d.HasVolume() {
			continue
		}
		d, fresh, err := e.createDisk(ctx, t, host, vmid, d)
		if fresh != "" {
			made = append(made, fresh)
		}
		if err != nil {
			return made, err
		}
		options[key] = d.String()
		if fresh != "" && t != nil {
			t.Logf("%s: successfully created disk '%s'", key, d)
		}
	}
	return made, nil
}

func (e *Engine) createDisk(ctx context.Context, t *tasks.Task, host string, vmid int, d qm.Drive) (out qm.Drive, made string, err error) {
	e.mu.Lock()
	s, err := e.checkStorage(d.Storage(), host)
	existing := e.volume(host, d.File)
	e.mu.Unlock()
	if err != nil {
		return d, "", err
	}
	if strings.HasSuffix(d.File, ":cloudinit") {
		v, err := e.allocateCloudInit(ctx, t, host, s, vmid)
		if err != nil {
			return d, "", err
		}
		d.File, d.Opts = v.ID(), map[string]string{"media": "cdrom"}
		return d, v.ID(), nil
	}
	m := newDisk.FindStringSubmatch(d.File)
	if m == nil {
		if existing == nil {
			return d, "", failf("volume '%s' does not exist", d.File)
		}
		if existing.Content() == "images" {
			d.Opts["size"] = qm.FormatSize(existing.Size)
		}
		return d, "", nil
	}
	return e.newDisk(ctx, t, host, vmid, d, s, m[2])
}

func (e *Engine) newDisk(ctx context.Context, t *tasks.Task, host string, vmid int, d qm.Drive, s *Storage, gib string) (qm.Drive, string, error) {
	format := d.Opts["format"]
	delete(d.Opts, "format")
	size := sizeInGiB(gib)
	source := d.Opts["import-from"]
	delete(d.Opts, "import-from")
	var from *Volume
	if source != "" {
		e.mu.Lock()
		from = e.volume(host, source)
		e.mu.Unlock()
		if from == nil {
			return d, "", e.missingSource(source)
		}
		e.mu.Lock()
		size = e.virtualSize(from)
		e.mu.Unlock()
		t.Logf("create full clone of drive (%s)", source)
	} else if d.Key == "efidisk0" {
		size = 528 << 10
	} else if d.Key == "tpmstate0" {
		size = 4 << 20
	}
	v, err := e.allocate(ctx, t, allocation{host: host, storage: s, owner: vmid, format: format, size: size})
	if err != nil {
		return d, "", err
	}
	if from != nil {
		if err := e.copyVolume(ctx, t, s, from, v); err != nil {
			return d, v.ID(), err
		}
	}
	d.File = v.ID()
	d.Opts["size"] = qm.FormatSize(v.Size)
	return d, v.ID(), nil
}

func (e *Engine) missingSource(volid string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	id, name, _ := strings.Cut(volid, ":")
	if s := e.storage(id); s != nil && s.kind().fileBased {
		return failf("failed to stat '%s'", s.file(name))
	}
	return failf("volume '%s' does not exist", volid)
}

func sizeInGiB(text string) int64 {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return int64(math.Round(f * (1 << 30)))
}

// copyVolume is a full copy: it reads the whole virtual size and takes its time.
func (e *Engine) copyVolume(ctx context.Context, t *tasks.Task, s *Storage, from, to *Volume) error {
	if e.Version.CloneAnnounced {
		t.Logf("allocated target volume '%s'", to.ID())
	}
	size := to.Size
	t.Logf("transferred 0.0 B of %s (0.00%%)", humanSize(size))
	rate := e.latencyOf(s).CopyBytesPerSecond
	if rate > 0 {
		took := time.Duration(float64(size) / float64(rate) * float64(time.Second))
		if err := e.Clock.Sleep(ctx, took); err != nil {
			return err
		}
	}
	t.Logf("transferred %s of %s (100.00%%)", humanSize(size), humanSize(size))
	e.mu.Lock()
	defer e.mu.Unlock()
	to.Used = from.Used
	to.Disk = from.Disk.copy()
	if from.Content() != "images" {
		to.Used = from.Size
	}
	return nil
}

// humanSize prints a size as the copy's progress does.
func humanSize(n int64) string {
	f, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}

func (e *Engine) allocateCloudInit(ctx context.Context, t *tasks.Task, host string, s *Storage, vmid int) (*Volume, error) {
	return e.allocate(ctx, t, allocation{
		host: host, storage: s, owner: vmid, name: s.volumeName(vmid, "cloudinit", "qcow2"), size: cloudInitSize,
	})
}
