"""Invented spoken digits of invented speakers: spectrograms that a simple model of a voice makes; no recordings."""

import numpy as np
from numpy.typing import NDArray

from fedloom.data.dataset import Dataset
from fedloom.data.sampling import number, stream, whole

RATE, FRAME, HOP = 8000, 256, 160  # samples a second, of a frame, from one frame to the next
FRAMES = BANDS = 32  # of a spectrogram
SAMPLES = FRAME + HOP * (FRAMES - 1)
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WIDTHS = np.array([80.0, 110.0, 160.0])  # of the formants, in hertz
Floats = NDArray[np.float64]

# For every digit, at five moments of the word: three formants in hertz, loudness of the voice and of hissing, and the
# hiss's frequency in hertz. Invented after common values of English vowels, and coarse: a sketch of the sounds.
VOICES = np.array([
    [(300, 1800, 2500, 0.4, 0.6, 3500), (380, 2000, 2600, 1, 0, 3000), (420, 1500, 2100, 0.9, 0, 3000),
     (500, 950, 2400, 1, 0, 3000), (400, 800, 2300, 0.6, 0, 3000)],
    [(320, 650, 2200, 0.7, 0, 3000), (500, 900, 2300, 1, 0, 3000), (660, 1200, 2500, 1, 0, 3000),
     (450, 1400, 2400, 0.7, 0, 3000), (280, 1500, 2300, 0.5, 0, 3000)],
    [(300, 1800, 2600, 0, 0.9, 3200), (320, 1600, 2400, 0.6, 0.3, 3000), (320, 1200, 2300, 1, 0, 3000),
     (320, 950, 2250, 1, 0, 3000), (320, 900, 2200, 0.6, 0, 3000)],
    [(400, 1400, 2500, 0, 0.4, 2800), (350, 1300, 1700, 0.7, 0.1, 2500), (300, 2000, 2700, 1, 0, 3000),
     (280, 2250, 2950, 1, 0, 3000), (280, 2250, 2950, 0.7, 0, 3000)],
    [(450, 1000, 2300, 0, 0.4, 2000), (480, 850, 2400, 0.8, 0.1, 2000), (550, 850, 2450, 1, 0, 3000),
     (500, 1000, 1900, 0.9, 0, 3000), (450, 1250, 1650, 0.6, 0, 3000)],
    [(500, 1100, 2300, 0, 0.4, 2000), (730, 1150, 2450, 1, 0, 3000), (650, 1500, 2500, 1, 0, 3000),
     (400, 1950, 2550, 0.9, 0, 3000), (300, 1400, 2300, 0.4, 0.3, 2200)],
    [(350, 1800, 2500, 0, 1.0, 3700), (390, 1950, 2550, 1, 0.1, 3500), (390, 1950, 2550, 0.6, 0, 3000),
     (350, 1900, 2400, 0, 0.15, 2000), (350, 1800, 2500, 0, 0.9, 3700)],
    [(400, 1700, 2500, 0, 1.0, 3700), (530, 1800, 2500, 1, 0.1, 3500), (400, 1400, 2300, 0.6, 0.2, 2200),
     (480, 1500, 2400, 0.8, 0, 3000), (280, 1600, 2400, 0.5, 0, 3000)],
    [(480, 1850, 2500, 0.9, 0, 3000), (430, 2050, 2600, 1, 0, 3000), (350, 2200, 2700, 0.9, 0, 3000),
     (350, 2000, 2700, 0, 0, 3000), (350, 1800, 2600, 0, 0.8, 3200)],
    [(280, 1500, 2300, 0.5, 0, 3000), (680, 1200, 2450, 1, 0, 3000), (620, 1550, 2500, 1, 0, 3000),
     (400, 1900, 2500, 0.8, 0, 3000), (280, 1600, 2300, 0.5, 0, 3000)],
])  # fmt: skip


def spoken(speakers: int = 40, repeats: int = 5, noise: float = 0.1, seed: int = 0) -> Dataset:
    """Synthetic spoken digits, not recordings: log-mel spectrograms [1, 32, 32] of ten words by many speakers.

    Made as AudioMNIST is used, with speakers as clients, but computed: pulses and hiss go through formants that move
    as in the word. Speakers differ in pitch, length of the vocal tract, tempo, hissing and accent, and each says every
    digit `repeats` times, of which one in five, and at least one, is for testing. `noise` is the loudness of the room.
    Spectrograms have mean 0 and standard deviation 1 over the training examples.
    """
    speakers, repeats = whole("speakers", speakers, 1, 100_000), whole("repeats", repeats, 2, 10_000)
    noise = number("noise", noise, 0, 100)
    whole("seed", seed, 0)
    tested = max(round(repeats / 5), 1)
    x = np.stack([_of_speaker(stream(seed, f"spoken {speaker}"), repeats, noise) for speaker in range(speakers)])
    x_train, x_test = (part.reshape(-1, 1, BANDS, FRAMES) for part in (x[:, :, tested:], x[:, :, :tested]))
    mean, deviation = x_train.mean(dtype=np.float64), x_train.std(dtype=np.float64)
    x_train, x_test = (((part - mean) / deviation).astype(np.float32) for part in (x_train, x_test))
    counts, digits = (repeats - tested, tested), np.arange(len(DIGITS))
    y_train, y_test = (np.tile(np.repeat(digits, count), speakers) for count in counts)
    client_train, client_test = (np.repeat(np.arange(speakers), len(DIGITS) * count) for count in counts)
    return Dataset(
        "spoken", x_train, y_train, x_test, y_test, client_train, client_test, classes=len(DIGITS), vocabulary=0,
        client_names=tuple(f"speaker-{speaker:02}" for speaker in range(speakers)), class_names=DIGITS,
        divided=True,
    )  # fmt: skip


def _of_speaker(rng: np.random.Generator, repeats: int, noise: float) -> NDArray[np.float32]:
    """A speaker's spectrograms [10, repeats, bands, frames]."""
    count = len(DIGITS) * repeats
    pitch, tract = rng.uniform(90, 240), rng.uniform(0.85, 1.2)
    tempo, hiss = rng.uniform(0.8, 1.25), rng.uniform(0.5, 1.5)
    accent = np.exp(0.08 * rng.standard_normal((len(DIGITS), 5, 3)))  # how the speaker forms each word
    words = np.repeat(VOICES, repeats, 0)  # [n, 5 moments, 6]
    words[:, :, :3] *= tract * np.repeat(accent, repeats, 0) * np.exp(0.04 * rng.standard_normal((count, 5, 3)))
    words[:, :, 4] *= hiss
    sound = _source(rng, pitch * np.exp(0.06 * rng.standard_normal(count)))
    length = 0.42 * tempo * np.exp(0.08 * rng.standard_normal(count)) * RATE  # samples
    length = np.minimum(length, 0.95 * SAMPLES)
    start = rng.random(count) * (SAMPLES - length)
    loud = np.exp(0.3 * rng.standard_normal(count))
    middles = FRAME / 2 + HOP * np.arange(FRAMES)
    moment = (middles - start[:, None]) / length[:, None]  # [n, frames], from 0 to 1 within the word
    power = _filtered(sound, words, moment) * loud[:, None, None] ** 2
    power += (0.02 * noise * _spectra(rng.standard_normal((count, SAMPLES)))) * np.exp(rng.normal(0, 0.5))
    bands = np.log(power @ _mel() + 1e-3).transpose(0, 2, 1)
    result: NDArray[np.float32] = bands.reshape(len(DIGITS), repeats, BANDS, FRAMES).astype(np.float32)
    return result


def _source(rng: np.random.Generator, pitch: Floats) -> tuple[Floats, Floats]:
    """Power spectra of a voice's pulses and of hiss [n, frames, bins]; the pitch falls by a fifth within a word."""
    falling = pitch[:, None] * np.linspace(1.1, 0.9, SAMPLES)
    pulses = np.diff(np.floor(np.cumsum(falling, 1) / RATE + rng.random((len(pitch), 1))), axis=1, prepend=0)
    pulses[:, 0] = 0
    return _spectra(pulses), _spectra(rng.standard_normal(pulses.shape) / 8)


def _spectra(sound: Floats) -> Floats:
    """Power spectra of the frames of sounds [n, samples]: [n, frames, bins]."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME, 1)[:, ::HOP]
    power: Floats = np.abs(np.fft.rfft(frames * np.hanning(FRAME))) ** 2
    return power


def _filtered(sources: tuple[Floats, Floats], words: Floats, moment: Floats) -> Floats:
    """The sources' spectra through the formants of each moment of each word; silence outside the word."""
    voice, hiss = sources
    place = np.clip(moment, 0, 1) * (words.shape[1] - 1)
    before = np.minimum(place.astype(np.int64), words.shape[1] - 2)
    part, row = (place - before)[..., None], np.arange(len(words))[:, None]
    now = words[row, before] * (1 - part) + words[row, before + 1] * part  # [n, frames, 6]
    inside = (moment >= 0) & (moment <= 1)
    bins = np.fft.rfftfreq(FRAME, 1 / RATE)
    apart = (bins[:, None] - now[:, :, None, :3]) / WIDTHS  # [n, frames, bins, 3]
    formants = (np.array([1.0, 0.5, 0.25]) / (1 + apart**2)).sum(-1)
    hissing = 1 / (1 + ((bins - now[:, :, 5:]) / 600) ** 2)
    voiced = voice * (now[:, :, 3:4] * formants) ** 2
    power: Floats = (voiced + hiss * (now[:, :, 4:5] * hissing) ** 2) * inside[..., None]
    return power


def _mel() -> Floats:
    """Triangular filters [bins, bands] whose middles are evenly spaced on the mel scale from 100 Hz to 4 kHz."""
    low, high = (2595 * float(np.log10(1 + hertz / 700)) for hertz in (100, RATE / 2))
    edges = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(FRAME, 1 / RATE)[:, None]
    rising, falling = (bins - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - bins) / np.diff(edges)[1:]
    filters: Floats = np.maximum(np.minimum(rising, falling), 0)
    return filters
