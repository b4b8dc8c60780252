// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command guestimage builds a cloud image for real guests: Debian from its own packages, with cloud-init, containerd, the
// guest agent, and kubelet and kubeadm from kubeplane's Go module. The image boots with SeaBIOS and UEFI. It is written with
// its kernel and initial RAM disk, for guests that start without a boot loader. Nothing needs root or loop devices.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// images are the names of the images by Debian suite.
var images = map[string]string{"bookworm": "debian-12", "trixie": "debian-13"}

func main() {
	suite := flag.String("suite", "trixie", "Debian suite: trixie or bookworm")
	out := flag.String("out", ".cache/guest", "directory of the images")
	plain := flag.Bool("plain", false, "leave out containerd and Kubernetes, as Debian does, and write their packages into a repository next to the image")
	flag.Parse()
	if err := run(*suite, *out, *plain); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(suite, out string, plain bool) error {
	name := images[suite]
	if name == "" {
		return fmt.Errorf("SUITE: found %q, want trixie or bookworm", suite)
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return fmt.Errorf("found a machine with %s/%s, want linux/amd64", runtime.GOOS, runtime.GOARCH)
	}
	if plain {
		name += "-plain"
	}
	inputs, err := hashInputs()
	if err != nil {
		return err
	}
	image := filepath.Join(out, name)
	if isCurrent(image, inputs) {
		fmt.Println(image+".qcow2:", "up to date")
		return nil
	}
	if err := checkTools(os.Geteuid() == 0); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("creating %s: %w", out, err)
	}
	work, err := os.MkdirTemp(out, "work-")
	if err != nil {
		return fmt.Errorf("creating a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	if work, err = filepath.Abs(work); err != nil {
		return err
	}
	b := build{work: work, suite: suite, plain: plain}
	for _, step := range []struct {
		title string
		run   func() error
	}{
		{"building kubelet and kubeadm (first time: about 5 minutes of CPU time; then seconds)", b.kubernetes},
		{"building the container images", b.containerImages},
		{"building the repository of packages", b.repository},
		{"installing the packages of Debian " + suite + " (1-2 minutes)", b.rootFS},
		{"assembling the disk (half a minute)", b.disk},
	} {
		started := time.Now()
		fmt.Println("==>", step.title)
		if err := step.run(); err != nil {
			return err
		}
		fmt.Printf("    %s\n", time.Since(started).Round(time.Second))
	}
	return publish(work, image, inputs)
}

// build is the build of one image.
type build struct {
	// work is the directory of intermediate files, deleted afterwards.
	work, suite string
	// plain leaves out containerd and Kubernetes.
	plain bool
}

func (b build) path(name string) string { return filepath.Join(b.work, name) }

// outputs are the extensions of the files of an image, which are also their names in the work directory.
var outputs = []string{"vmlinuz", "initrd", "qcow2"}

// publish moves the files of an image to their names. The stamp is last: without it, the image is built again.
func publish(work, image, inputs string) error {
	extensions := outputs
	if _, err := os.Stat(filepath.Join(work, "repository")); err == nil { // of a plain image
		extensions = append([]string{"repository"}, outputs...)
		if err := os.RemoveAll(image + ".repository"); err != nil {
			return fmt.Errorf("publishing the image: %w", err)
		}
	}
	for _, extension := range extensions {
		if err := os.Rename(filepath.Join(work, extension), image+"."+extension); err != nil {
			return fmt.Errorf("publishing the image: %w", err)
		}
	}
	if err := os.WriteFile(image+".stamp", []byte(inputs+"\n"), 0o644); err != nil {
		return fmt.Errorf("publishing the image: %w", err)
	}
	fmt.Printf("%s.qcow2, with .vmlinuz and .initrd\n", image)
	return nil
}

// isCurrent reports whether all files of an image exist and were built from the same inputs.
func isCurrent(image, inputs string) bool {
	for _, extension := range outputs {
		if _, err := os.Stat(image + "." + extension); err != nil {
			return false
		}
	}
	stamp, err := os.ReadFile(image + ".stamp")
	return err == nil && strings.TrimSpace(string(stamp)) == inputs
}

// hashInputs returns a hash of what an image is built from, except for Debian's packages.
func hashInputs() (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version())
	paths := []string{"kubeplane/go.mod", "kubeplane/go.sum"}
	err := filepath.WalkDir("hack/guestimage", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !strings.HasSuffix(path, "_test.go") {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("reading the inputs: %w", err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("reading the inputs: %w", err)
		}
		fmt.Fprintln(hash, path, len(content))
		_, _ = hash.Write(content)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// checkTools returns an error with the Debian packages of missing tools.
func checkTools(root bool) error {
	packages := map[string]string{"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "qemu-img": "qemu-utils", "tar": "tar"}
	if !root {
		packages["fakeroot"], packages["newuidmap"] = "fakeroot", "uidmap"
	}
	var missing []string
	for tool, name := range packages {
		// The directory of mke2fs is not in the path of ordinary users.
		if _, err := exec.LookPath(tool); err != nil && !isExecutable("/usr/sbin/"+tool) {
			missing = append(missing, name)
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		missing = append(missing, "debian-archive-keyring")
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return errors.New("tools are missing; install them with: apt-get install " + strings.Join(missing, " "))
	}
	return nil
}

func isExecutable(path string) bool {
	_, err := exec.LookPath(path)
	return err == nil
}

// command runs a program and shows what it prints.
func command(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running %s: %w", name, err)
	}
	return nil
}
