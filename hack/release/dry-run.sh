#!/usr/bin/env bash
# Publishes a release to a registry on this machine, signed with a new key, and then uses it as a user would: pulls image,
# charts and files, verifies their signatures, runs the programs, and follows the documentation with them.
# "make release-dry-run" runs it.
set -euo pipefail
: "${VERSION:?}" "${ARCHES:?}" "${DIR:?}" "${COSIGN:?}" "${CRANE:?}" "${HELM:?}"
work=$(mktemp -d)
registry=
cleanup() {
	[ -z "$registry" ] || kill "$registry"
	rm -rf "$work"
}
trap cleanup EXIT
log() { printf '\033[1m==> %s\033[0m\n' "$*"; }
fail() { echo "release-dry-run: $*" >&2; exit 1; }

log 'starting a registry'
mkdir "$work/registry"
"$CRANE" registry serve --address 127.0.0.1:0 --disk "$work/registry" 2> "$work/registry.log" &
registry=$!
until port=$(sed -n 's/.*serving on port \([0-9]*\).*/\1/p' "$work/registry.log") && [ -n "$port" ]; do
	kill -0 "$registry" || fail "the registry ended: $(cat "$work/registry.log")"
	sleep 0.1
done
export IMAGE=127.0.0.1:$port/karpenter-provider-proxmox CHARTS=oci://127.0.0.1:$port/charts

log "publishing $VERSION"
# A signing config without services: no transparency log and no timestamps, which need the internet.
echo '{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"}' > "$work/signing.json"
export COSIGN_PASSWORD=
for key in release other; do "$COSIGN" generate-key-pair --output-key-prefix "$work/$key" 2> /dev/null; done
make release VERSION="$VERSION" ARCH="$ARCHES" IMAGE="$IMAGE" CHARTS="$CHARTS" HELM_FLAGS=--plain-http \
	COSIGN_FLAGS="--key $work/release.key --signing-config $work/signing.json"

log 'verifying signatures'
check=(--key "$work/release.pub" --insecure-ignore-tlog=true)
quiet() { "$@" > "$work/out" 2>&1 || fail "$* failed: $(cat "$work/out")"; }
refused() { ! "$@" > "$work/out" 2>&1 || fail "$* succeeded, but must not"; }
charts=${CHARTS#oci://}
for tag in "$IMAGE:$VERSION" "$charts/karpenter-provider-proxmox:${VERSION#v}" "$charts/karpenter-provider-proxmox-crd:${VERSION#v}"; do
	quiet "$COSIGN" verify "${check[@]}" "$tag"
	quiet "$COSIGN" verify-attestation "${check[@]}" --type slsaprovenance1 "$tag"
	grep -o '"payload":"[^"]*"' "$work/out" | cut -d '"' -f 4 | base64 -d | grep -qF "$(git rev-parse HEAD)" || fail "the provenance of $tag has another commit"
	refused "$COSIGN" verify --key "$work/other.pub" --insecure-ignore-tlog=true "$tag"
	echo "$tag: signature and provenance"
done
for arch in ${ARCHES//,/ }; do
	digest=$IMAGE@$("$CRANE" digest --platform "linux/$arch" "$IMAGE:$VERSION")
	quiet "$COSIGN" verify "${check[@]}" "$digest"
	quiet "$COSIGN" verify-attestation "${check[@]}" --type spdxjson "$digest"
	echo "$digest: signature and bill of materials for $arch"
done
cp -r "$DIR" "$work/files"
cd "$work/files"
quiet "$COSIGN" verify-blob "${check[@]}" --bundle checksums.txt.sigstore.json checksums.txt
quiet "$COSIGN" verify-blob-attestation "${check[@]}" --type slsaprovenance1 --bundle provenance.sigstore.json checksums.txt
sha256sum --quiet --check checksums.txt
echo "# changed" >> checksums.txt
refused "$COSIGN" verify-blob "${check[@]}" --bundle checksums.txt.sigstore.json checksums.txt
echo "checksums.txt: signature, provenance, $(wc -l < "$DIR/checksums.txt") files"

log 'running what was pulled'
cd "$OLDPWD"
mkdir "$work/image" "$work/charts"
arch=$(go env GOARCH)
"$CRANE" export --platform "linux/$arch" "$IMAGE:$VERSION" - | tar -xf - -C "$work/image"
"$work/image/controller" --version | tee "$work/out"
grep -qF " $VERSION " "$work/out" || fail "the controller reports another version"
for chart in karpenter-provider-proxmox karpenter-provider-proxmox-crd; do
	"$HELM" pull --plain-http --untar --untardir "$work/charts" --version "${VERSION#v}" "$CHARTS/$chart"
done
"$HELM" template "$work/charts/karpenter-provider-proxmox" | grep -F "image: \"ghcr.io/karpenter-proxmox/karpenter-provider-proxmox:$VERSION\"" ||
	fail "the chart has another image"
for path in "$work"/files/*.tar.gz; do
	IFS=_ read -r program _ system platform <<< "$(basename "$path" .tar.gz)"
	[ "$system" != windows ] || program=$program.exe
	tar -xzf "$path" -C "$work" "$program"
	go version -m "$work/$program" > "$work/out"
	grep -q "GOOS=$system$" "$work/out" && grep -q "GOARCH=$platform$" "$work/out" || fail "$program of $path is not for $system on $platform"
	case $system/$platform/$program in
	linux/$arch/kubectl-proxmox) "$work/$program" version --client | grep -F " $VERSION" || fail "$program reports another version" ;;
	linux/$arch/controller) cmp "$work/$program" "$work/image/controller" || fail "$program is not the one of the image" ;;
	linux/$arch/pvesim) "$work/$program" --version | grep -F " $VERSION " || fail "$program reports another version" ;;
	esac
	case $program in
	kubectl-proxmox*) grep -qF "$(sha256sum "$path" | cut -d ' ' -f 1)" "$work/files/krew.yaml" || fail "krew.yaml has another checksum of $path" ;;
	esac
done

log 'following the documentation with what was pulled'
CHARTS=$work/charts CONTROLLER=$work/image/controller MANIFEST=$work/files/install.yaml \
	go test -count=1 -run 'TestGettingStarted|TestManifestInstall' ./test/e2e
