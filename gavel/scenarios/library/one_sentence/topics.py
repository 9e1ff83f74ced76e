"""What the sentences are about: everyday things, each of which is either trained on or held out."""

TRAIN = (
    "the sea", "a bicycle", "the moon", "bread", "winter", "a violin", "the desert", "tea", "a lighthouse", "honey",
    "the wind", "a library", "rice", "a train", "the night", "an owl", "paper", "a volcano", "salt", "a garden",
    "the sun", "a horse", "chess", "a river", "wool", "an island", "coffee", "a clock", "the forest", "a kitchen",
    "glass", "a dog", "the harvest", "an orange", "a bridge", "rain", "a market", "gold", "a spider", "the theatre",
    "milk", "a ladder", "the alphabet", "a whale", "autumn", "a candle", "football", "an engine", "the north",
    "a shadow", "soap", "a museum", "the heart", "a mirror",
    "potatoes", "a storm", "iron", "a tailor", "the circus", "a letter",
)  # fmt: skip
HELD_OUT = (
    "the sky", "a cat", "spring", "a piano", "cheese", "a castle", "snow", "a farmer", "the airport", "an apple",
    "wood", "a doctor", "the stars", "a boat", "sugar", "a teacher", "the beach", "an elephant", "silver", "a school",
    "summer", "a guitar", "the hospital", "a chair", "pepper", "a mountain", "the post office", "an umbrella", "cotton",
    "a nurse", "the weather", "a rabbit", "butter", "a window", "the kitchen table", "an ant", "leather", "a lake",
    "the city", "a bird", "chocolate", "a camera", "the jungle", "a hammer", "fire", "a baker", "the radio", "a pencil",
    "water", "a tiger", "the garden gate", "an egg", "sand", "a painter", "the morning", "a shoe", "soup", "a rocket",
    "the village", "a fox", "ice", "a telephone", "the mail", "a bee", "music", "a carpet", "the sunset", "a wolf",
    "stone", "a bus", "the ocean floor", "a key", "tomatoes", "a cloud", "the newspaper", "a drum", "oil", "a lion",
    "the playground", "a blanket", "corn", "a frog", "the harbour", "a knife", "silk", "a turtle", "the orchestra",
    "a bottle", "thunder", "a tree", "the attic", "a monkey", "pasta", "a kite", "the evening", "a wheel",
)  # fmt: skip
